package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// sluice is the running program, and the way to ask it.
type sluice struct {
	program, socket string
	node            *testnet.Host
	cmd             *exec.Cmd
	ended           chan struct{}
	err             error // set when ended

	mu  sync.Mutex
	log []string
}

// startSluice runs `sluice run` in the node's namespace, with its log in a file too. It ends with this process.
func startSluice(node *testnet.Host, program, socket, logFile string, args ...string) (*sluice, error) {
	s := &sluice{program: program, socket: socket, node: node, ended: make(chan struct{})}
	s.cmd = exec.Command(program, append([]string{"run", "--socket", socket}, args...)...)
	// A process group of its own: Ctrl-C is for the demo, which then stops sluice.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	file, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// Pdeathsig is about the thread that starts the child, so that thread has to stay.
		runtime.LockOSThread()
		defer file.Close()
		if err := node.Do(s.cmd.Start); err != nil {
			started <- err
			return
		}
		started <- nil
		s.follow(stderr, file)
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", program, err)
	}
	return s, nil
}

func (s *sluice) follow(r io.Reader, file io.Writer) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.log = append(s.log, lines.Text())
		s.mu.Unlock()
		fmt.Fprintln(file, lines.Text()) // for people: that it cannot be written stops nothing
	}
}

// logLines gives the lines logged since mark that have all of some words, and a mark of now.
func (s *sluice) logLines(mark int, words ...string) (out []string, now int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.log[mark:] {
		has := true
		for _, w := range words {
			has = has && strings.Contains(l, w)
		}
		if has {
			out = append(out, l)
		}
	}
	return out, len(s.log)
}

// stop asks it to end, and tells how it did.
func (s *sluice) stop() error {
	select {
	case <-s.ended:
	default:
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.ended:
		case <-time.After(5 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.ended
			return errors.New("sluice did not end within 5 s of SIGTERM")
		}
	}
	if s.err != nil {
		return fmt.Errorf("sluice ended by itself or badly: %w", s.err)
	}
	return nil
}
