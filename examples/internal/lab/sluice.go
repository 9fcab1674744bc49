// Package lab has what the programs in examples share: a running sluice on a node of network namespaces, and changes of its
// files.
package lab

import (
	"bufio"
	"bytes"
	"context"
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

// Sluice is the running `sluice run` with its socket and log.
type Sluice struct {
	Program, Socket string // paths

	node  *testnet.Host
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // set when ended

	mu  sync.Mutex
	log []string
}

// StartSluice starts `sluice run` in the namespace of the node, and copies its log to a file. It ends with this process.
func StartSluice(node *testnet.Host, program, socket, logFile string, args ...string) (*Sluice, error) {
	s := &Sluice{Program: program, Socket: socket, node: node, ended: make(chan struct{})}
	s.cmd = exec.Command(program, append([]string{"run", "--socket", socket}, args...)...)
	// Its own process group: Ctrl-C is for this process, which then stops sluice.
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
		// Pdeathsig applies to the thread that starts the child, so the thread must live as long.
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

func (s *Sluice) follow(r io.Reader, file io.Writer) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.log = append(s.log, lines.Text())
		s.mu.Unlock()
		fmt.Fprintln(file, lines.Text()) // for the user; an error is harmless
	}
}

// PID returns the process ID.
func (s *Sluice) PID() int { return s.cmd.Process.Pid }

// Ended returns a channel that is closed when sluice has ended.
func (s *Sluice) Ended() <-chan struct{} { return s.ended }

// Run runs a command of sluice in the namespace of the node and returns its standard output.
func (s *Sluice) Run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.Program, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := s.node.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("run %s: %w", s.Program, err)
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("sluice %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out.Bytes(), nil
}

// LogLines returns the lines logged since mark that contain all words, and the new mark.
func (s *Sluice) LogLines(mark int, words ...string) (out []string, now int) {
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

// stopTimeout has room for the kernel, which closes inotify instances late on a machine with too much load. After 2 s, sluice
// itself says what it waits for and exits with 1.
const stopTimeout = time.Minute

// Stop terminates sluice and returns an error if it did not exit cleanly.
func (s *Sluice) Stop() error {
	select {
	case <-s.ended:
	default:
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-s.ended:
		case <-time.After(stopTimeout):
			_, mark := s.LogLines(0)
			_ = s.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines are in the log then
			select {
			case <-s.ended:
			case <-time.After(5 * time.Second):
				_ = s.cmd.Process.Kill()
				<-s.ended
			}
			goroutines, _ := s.LogLines(mark)
			return fmt.Errorf("sluice did not exit within %s of SIGTERM:\n%s", stopTimeout, strings.Join(goroutines, "\n"))
		}
	}
	if s.err != nil {
		return fmt.Errorf("sluice exited: %w", s.err)
	}
	return nil
}
