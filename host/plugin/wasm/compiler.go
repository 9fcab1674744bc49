package wasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/turns"
)

// CompileLimits bound the process that compiles a module. A module that needs more is refused.
type CompileLimits struct {
	CPU    time.Duration // of all its threads, rounded up to seconds
	Memory int64         // bytes of writable memory, mapped by the child process
}

// DefaultCompileLimits returns limits for the modules that the limits of package meter accept. A Go module of 3.7 MB, the largest
// in this repository, takes 1.2 s and 100 MiB of resident memory in cmd/sluice, but does not succeed with a limit of 192 MiB: the
// Go runtime maps 64 MiB at a time, and it needs a third such part. The CPU time has room for slow processors, and for virtual
// machines that count the time of others on their host as theirs.
func DefaultCompileLimits() CompileLimits {
	return CompileLimits{CPU: 30 * time.Second, Memory: 208 << 20}
}

// untouched is the part of CompileLimits.Memory that is never resident: when the child starts, it has mapped 120 MiB and uses 3,
// of which the first 64 MiB are the heap's.
const untouched = 52 << 20

// resident returns the memory that a child process takes at most, in bytes.
func (l CompileLimits) resident() int64 { return max(l.Memory-untouched, 0) }

// timeout ends a child process that gets no CPU time. The child has a low priority, so it may need far longer than its CPU time.
func (l CompileLimits) timeout() time.Duration { return 10 * l.CPU }

// compiler compiles modules in child processes, one at a time.
type compiler struct {
	argv        []string
	limits      CompileLimits
	memoryPages uint32
	turns       turns.Turns
}

func newCompiler(argv []string, limits CompileLimits, memoryPages uint32) *compiler {
	return &compiler{argv: argv, limits: limits, memoryPages: memoryPages}
}

// errStorage is an error of the child that concerns the folder for the code, not the module.
var errStorage = errors.New("the compiler cannot write the compiled code")

// Exit codes of CompileMain.
const (
	exitRefused    = 3 // the module is not valid; the reason is on standard error
	exitStorage    = 4 // the code cannot be written
	exitCPUTime    = 5 // the limit of CPU time is reached
	exitExecutable = 6 // see CheckExecutable
)

// lacksMemory says that a plugin that is loaded lacks memory, which a child may have.
func (c *compiler) lacksMemory() {
	if c != nil {
		c.turns.Lacking()
	}
}

// compile runs a child process that compiles a rewritten module into dir, a folder for wazero's compilation cache, until the turn
// is lost or timeout is over. When ctx ends, the child is killed and not waited for: with its low priority, it may take seconds
// to end.
func (c *compiler) compile(outer context.Context, t *turns.Turn, timeout time.Duration, dir string, metered []byte) error {
	ctx, cancel := context.WithTimeout(outer, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append(append([]string{}, c.argv...), dir, strconv.FormatInt(int64((c.limits.CPU+time.Second-1)/time.Second), 10),
		strconv.FormatInt(c.limits.Memory, 10), strconv.FormatUint(uint64(c.memoryPages), 10))
	cmd.Stdin = bytes.NewReader(metered)
	stderr := &headBuffer{limit: 64 << 10}
	cmd.Stderr = stderr
	ended := make(chan error, 1)
	go func() { ended <- confine.Run(cmd, nil) }()
	done, err := c.turns.Await(outer, t, ended, func() error { return checkWork(dir) }, cancel)
	if !done || err == nil {
		return err
	}
	return c.explain(ctx, err, cmd.ProcessState, strings.TrimSpace(stderr.String()))
}

// CheckConfinement returns the layers of the confinement of a process that argv starts, see Options.Compiler, on this host.
func CheckConfinement(ctx context.Context, argv []string) (layers []confine.Layer, err error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append(append([]string{}, argv...), checkConfinement)
	out, stderr := &headBuffer{limit: 4 << 10}, &headBuffer{limit: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, stderr
	if err := confine.Run(cmd, nil); err != nil {
		return nil, fmt.Errorf("confined process: %w: %s", err, meter.Quote(strings.TrimSpace(stderr.String())))
	}
	if err := json.Unmarshal(out.head, &layers); err != nil {
		return nil, fmt.Errorf("confined process: %w", err)
	}
	return layers, nil
}

// explain returns why a child process failed.
func (c *compiler) explain(ctx context.Context, err error, state *os.ProcessState, stderr string) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("module refused: compile: not finished after %s", c.limits.timeout())
	case ctx.Err() != nil:
		return fmt.Errorf("compile: %w", ctx.Err())
	case state == nil:
		return fmt.Errorf("compile: start the compiler: %w", err)
	case state.ExitCode() == exitRefused && !outOfMemory(stderr):
		return fmt.Errorf("module refused: compile: %s", meter.Quote(stderr))
	case state.ExitCode() == exitStorage:
		return fmt.Errorf("%w: %s", errStorage, meter.Quote(stderr))
	case state.ExitCode() == exitExecutable:
		return notExecutable(errors.New("in the process that compiles"))
	case state.ExitCode() == exitCPUTime:
		return fmt.Errorf("module refused: compile: more than the limit of %s of CPU time (pluginLimits.compileTime)", c.limits.CPU)
	case outOfMemory(stderr):
		return fmt.Errorf("module refused: compile: more than the limit of %d MiB of memory", c.limits.Memory>>20)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return errors.New("module refused: compile: the compiler was killed, probably because the node has no memory left")
	}
	line, _, _ := strings.Cut(stderr, "\n")
	return fmt.Errorf("module refused: compile: the compiler failed (%s): %s", state, meter.Quote(line))
}

// outOfMemory reports whether a Go program that wrote this has failed to get memory, for itself or for a thread.
func outOfMemory(stderr string) bool {
	for _, text := range []string{"out of memory", "cannot allocate memory", "failed to create new OS thread", "failed to reserve"} {
		if strings.Contains(stderr, text) {
			return true
		}
	}
	return false
}

// headBuffer stores the first bytes that are written to it; more are an error, so that nobody has to read them. It has no other
// method to write, such as ReadFrom, which would have no limit.
type headBuffer struct {
	head  []byte
	limit int
}

// Write implements io.Writer.
func (b *headBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.limit-len(b.head))
	b.head = append(b.head, p[:n]...)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func (b *headBuffer) String() string { return string(b.head) }
