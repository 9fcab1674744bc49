package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

// alternatedSizes are the cluster sizes that are compared with the first one.
var alternatedSizes = []string{"1000x1", "10000x1", "44125x1"}

const (
	rounds = 40
	// perBlock is the number of updates per block; each replaces an endpoint.
	perBlock = 250
)

// block has the cost of perBlock updates, each from the event to the kernel's acknowledgement.
type block struct {
	Median float64 // milliseconds
	CPU    float64 // milliseconds per update, user and system, of the engine's thread
	All    float64 // the same for the whole process, including garbage collection and this benchmark
}

// runBlocks programs a cluster in the present network namespace and runs a block for each line of in.
func runBlocks(ctx context.Context, s size, in io.Reader, out io.Writer) error {
	l, err := newHarness(ctx, harnessOptions{locked: true})
	if err != nil {
		return err
	}
	defer l.stop()
	w := newClusterState(s)
	if _, err := l.apply(w.all()); err != nil {
		return err
	}
	measureMemory() // releases memory as sluice run does after its start
	rng := rand.New(rand.NewPCG(5, 6))
	lines, answer := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		var times []float64
		thread, err := l.threadCPU(ctx)
		if err != nil {
			return err
		}
		cpu := cpuSeconds()
		for range perBlock {
			done, err := l.apply([]model.Change{w.change(rng.IntN(s.services), replaced)})
			if err != nil {
				return err
			}
			times = append(times, done.latencies...)
		}
		b := block{Median: stats.Summarize(times).Median, All: (cpuSeconds() - cpu) * 1000 / perBlock}
		after, err := l.threadCPU(ctx)
		if err != nil {
			return err
		}
		b.CPU = (after - thread) * 1000 / perBlock
		if err := answer.Encode(b); err != nil {
			return err
		}
	}
	return lines.Err()
}

// threadCPU returns the CPU time of the engine's thread in seconds.
func (l *harness) threadCPU(ctx context.Context) (seconds float64, err error) {
	derr := l.engine.Do(ctx, func(*planner.Planner) {
		var u syscall.Rusage
		err = syscall.Getrusage(syscall.RUSAGE_THREAD, &u)
		seconds = float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	})
	return seconds, errors.Join(derr, err)
}

// sizeProcess is a process that runs blocks at one size.
type sizeProcess struct {
	size   string
	ask    io.WriteCloser
	answer *json.Decoder
	cmd    *exec.Cmd
	blocks []block
}

func startSizeProcess(size string) (*sizeProcess, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	a := &sizeProcess{size: size, cmd: exec.Command(exe, "-size", size, "-blocks")}
	a.cmd.Stderr = os.Stderr
	if a.ask, err = a.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	a.answer = json.NewDecoder(out)
	return a, a.cmd.Start()
}

func (a *sizeProcess) block() error {
	if _, err := io.WriteString(a.ask, "go\n"); err != nil {
		return fmt.Errorf("measuring %s: %w", a.size, err)
	}
	var b block
	if err := a.answer.Decode(&b); err != nil {
		return fmt.Errorf("measuring %s: %w", a.size, err)
	}
	a.blocks = append(a.blocks, b)
	return nil
}

// measureAlternating programs all sizes at once, each in its own process and network namespace, and runs blocks in the order
// A B C C B A, so that other load on the machine affects all sizes alike.
func measureAlternating() (list []*sizeProcess, err error) {
	defer func() {
		for _, a := range list {
			a.ask.Close()
			if werr := a.cmd.Wait(); err == nil && werr != nil {
				err = fmt.Errorf("measuring %s: %w", a.size, werr)
			}
		}
	}()
	for _, s := range alternatedSizes {
		a, err := startSizeProcess(s)
		if err != nil {
			return list, err
		}
		list = append(list, a)
		if err := a.block(); err != nil { // warm-up
			return list, err
		}
		a.blocks = nil
	}
	for range rounds {
		there := slices.Clone(list)
		slices.Reverse(there)
		for _, a := range append(slices.Clone(list), there...) {
			if err := a.block(); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

func printAlternating(w io.Writer, list []*sizeProcess) {
	fmt.Fprintf(w, "\n**Endpoint update by cluster size**, all sizes at once, %d alternating blocks of %d updates each\n\n", 2*rounds, perBlock)
	fmt.Fprint(w, "| Services × endpoints |")
	for _, a := range list {
		fmt.Fprintf(w, " %s |", a.size)
	}
	fmt.Fprint(w, "\n|---|")
	for range list {
		fmt.Fprint(w, "---|")
	}
	fmt.Fprintln(w)
	for _, f := range []struct {
		name string
		of   func(block) float64
	}{
		{"event → kernel, ms", func(b block) float64 { return b.Median }},
		{"CPU of the engine thread, ms", func(b block) float64 { return b.CPU }},
	} {
		fmt.Fprintf(w, "| %s, median of blocks |", f.name)
		for _, a := range list {
			fmt.Fprintf(w, " %.3f |", stats.Summarize(stats.Of(a.blocks, f.of)).Median)
		}
		fmt.Fprintf(w, "\n| … relative to the first size (95 %% CI) |")
		for i, a := range list {
			if i == 0 {
				fmt.Fprintf(w, " itself: %s |", stats.Noise(stats.Of(a.blocks, f.of)).Text(2))
				continue
			}
			fmt.Fprintf(w, " %s |", stats.Ratios(stats.Of(list[0].blocks, f.of), stats.Of(a.blocks, f.of)).Text(2))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "| CPU of the process including garbage collection, ms, mean of blocks |")
	for _, a := range list {
		sum := 0.0
		for _, b := range a.blocks {
			sum += b.All / float64(len(a.blocks))
		}
		fmt.Fprintf(w, " %.3f |", sum)
	}
	fmt.Fprintln(w)
}
