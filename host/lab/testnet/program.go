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

// Run runs a program on the host and returns its standard output and error.
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

// Program is a running program. Its methods may be called at any time, concurrently.
type Program struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid after ended is closed
}

// Start starts a program on the host, or in this process's namespace if h is nil. It is killed when this process ends.
func (h *Host) Start(cmd *exec.Cmd) (*Program, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p, started := &Program{cmd: cmd, ended: make(chan struct{})}, make(chan error, 1)
	go func() {
		// Pdeathsig refers to the thread that started the child, so that thread has to stay.
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

// PID returns the process ID.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// signal sends a signal unless the program has ended.
func (p *Program) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Ended returns a channel that is closed when the program has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Wait waits for the program to end and returns the error of exec.Cmd.Wait.
func (p *Program) Wait() error {
	<-p.ended
	return p.err
}

// End sends a signal and returns the error of Wait. A program that has not ended in time is killed, which is an error.
func (p *Program) End(by os.Signal, within time.Duration) error {
	p.signal(by)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(within):
		p.Kill()
		return fmt.Errorf("%s still runs %s after signal %s", p.cmd.Path, within, by)
	}
}

// Kill sends SIGKILL and waits for the end.
func (p *Program) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// Log collects a program's output, as its Stdout and Stderr, and can be read while the program runs.
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
