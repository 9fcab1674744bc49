package testnet

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Run runs a program on the host to its end, and gives all that it has printed.
func (h *Host) Run(stdin string, args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	var out []byte
	err := h.Do(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out), err
}

// Program is one that was started. Its methods may be called at any time, by several goroutines.
type Program struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid when it has ended
}

// Start starts a program on the host; on nil, where this process is. It is killed when this process ends.
func (h *Host) Start(cmd *exec.Cmd) (*Program, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p, started := &Program{cmd: cmd, ended: make(chan struct{})}, make(chan error, 1)
	go func() {
		// Pdeathsig is about the thread that starts the child, so that thread has to stay.
		runtime.LockOSThread()
		var err error
		if h == nil {
			err = cmd.Start()
		} else {
			err = h.Do(cmd.Start)
		}
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID is its number.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// signal sends one, unless it has ended.
func (p *Program) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Ended is closed when it has.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end, and gives what exec.Cmd's Wait does.
func (p *Program) Wait() error {
	<-p.ended
	return p.err
}

// End has it end by a signal, and gives what Wait does. One that goes on for longer than that is killed: an error.
func (p *Program) End(by os.Signal, within time.Duration) error {
	p.signal(by)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("%s goes on %s after the signal: %s", p.cmd.Path, within, by)
	}
}

// Kill ends it from one moment to the next, and waits for that.
func (p *Program) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// Log is what a program prints, to be read while it runs: its Stdout and Stderr.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
