package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// agentProcess is the process that runs the agents.
type agentProcess struct {
	benchutil.Process
	started time.Time
	in      io.WriteCloser
	out     *json.Decoder
	program *testnet.Program
}

// startAgents starts the agents in a host's namespace.
func startAgents(h *testnet.Host, n int, dir string, over time.Duration) (*agentProcess, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, AgentsCommand, "-kubeconfigs", dir, "-agents", strconv.Itoa(n), "-over", over.String())
	// Many agents share one garbage collector: run it more often than separate processes would need.
	cmd.Env = append(os.Environ(), "GOGC=40")
	cmd.Stderr = os.Stderr
	c := &agentProcess{}
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = json.NewDecoder(bufio.NewReader(out))
	c.started = time.Now()
	if c.program, err = h.Start(cmd); err != nil {
		return nil, fmt.Errorf("start the agents: %w", err)
	}
	c.Process = benchutil.Process(c.program.PID())
	return c, nil
}

// queryStatus returns the agents' status.
func (c *agentProcess) queryStatus() (s status, err error) {
	if _, err := io.WriteString(c.in, "?\n"); err != nil {
		return s, fmt.Errorf("query the agents: %w", err)
	}
	if err := c.out.Decode(&s); err != nil {
		return s, fmt.Errorf("query the agents: %w", err)
	}
	if s.Failed != "" {
		return s, fmt.Errorf("agent failed: %s", s.Failed)
	}
	return s, nil
}

// waitFor polls the status until so reports true.
func (c *agentProcess) waitFor(ctx context.Context, within, every time.Duration, what string, condition func(status) bool) (status, error) {
	for deadline := time.Now().Add(within); ; time.Sleep(every) {
		s, err := c.queryStatus()
		if err != nil || condition(s) {
			return s, err
		}
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		if time.Now().After(deadline) {
			return s, fmt.Errorf("timed out after %s: %s; agents: %+v", within, what, s)
		}
	}
}

// stop stops the agents and waits for their end.
func (c *agentProcess) stop() error {
	_ = c.in.Close()
	select {
	case <-c.program.Ended():
		return c.program.Wait()
	case <-time.After(30 * time.Second):
		c.program.Kill()
		return fmt.Errorf("agents did not stop: %w", c.program.Wait())
	}
}
