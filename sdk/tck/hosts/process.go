package hosts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
)

// maxLine bounds an answer in bytes: 5000 results have half a megabyte.
const maxLine = 16 << 20

// process is a host in a process: a command is a line of JSON on its standard input, an answer one on its standard output.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan line
	done  chan struct{} // closed by Close
}

type line struct {
	text []byte
	err  error
}

// Start returns a function that starts a host as a process. What it writes to its standard error goes to log.
func Start(log io.Writer, program string, args ...string) func(context.Context) (Host, error) {
	return func(ctx context.Context) (Host, error) {
		p := &process{cmd: exec.CommandContext(ctx, program, args...), lines: make(chan line), done: make(chan struct{})}
		p.cmd.Stderr = log
		var err error
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := p.cmd.Start(); err != nil {
			return nil, err
		}
		go p.read(out)
		return p, nil
	}
}

// read passes lines on until the process ends or is closed.
func (p *process) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(nil, maxLine)
	for {
		l := line{}
		if s.Scan() {
			l.text = bytes.Clone(s.Bytes())
		} else if l.err = s.Err(); l.err == nil {
			l.err = errors.New("the process has ended")
		}
		select {
		case p.lines <- l:
		case <-p.done:
			return
		}
		if l.err != nil {
			return
		}
	}
}

// Do implements Host.
func (p *process) Do(ctx context.Context, c *Command) (*Answer, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	written := make(chan error, 1)
	go func() {
		_, err := p.in.Write(append(text, '\n'))
		written <- err
	}()
	select { // a process that does not read blocks a long command
	case err = <-written:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("write to the process: %w", err)
	}
	select {
	case l := <-p.lines:
		if l.err != nil {
			return nil, l.err
		}
		a := &Answer{}
		if err := json.Unmarshal(l.text, a); err != nil {
			return nil, fmt.Errorf("the answer %.200q: %w", l.text, err)
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close implements Host: it ends the process.
func (p *process) Close() error {
	close(p.done)
	_ = p.in.Close()
	_ = p.cmd.Process.Kill()
	return p.cmd.Wait()
}
