package benchutil

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Process is the PID of a process to measure.
type Process int

// clockTick is the unit of /proc/PID/stat (USER_HZ) on every Linux architecture that Go supports.
const clockTick = 10 * time.Millisecond

// CPU returns the process's user and system time, including finished threads.
func (p Process) CPU() (time.Duration, error) {
	var t unix.Timespec
	// clock_getcpuclockid(3): the process's CPU clock, CPUCLOCK_SCHED.
	clock := int32(uint32(^int(p))<<3 | 2)
	if err := unix.ClockGettime(clock, &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", p, err)
	}
	return time.Duration(t.Nano()), nil
}

// ChildrenCPU returns the CPU time of reaped children and their descendants, in units of 10 ms.
func (p Process) ChildrenCPU() (time.Duration, error) {
	text, err := os.ReadFile(p.file("stat"))
	if err != nil {
		return 0, err
	}
	// The name, field 2, is in parentheses and may have anything in it; cutime and cstime are fields 16 and 17.
	f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(f) < 15 {
		return 0, fmt.Errorf("%s: %d fields after the name", p.file("stat"), len(f))
	}
	user, err1 := strconv.ParseInt(string(f[13]), 10, 64)
	system, err2 := strconv.ParseInt(string(f[14]), 10, 64)
	return time.Duration(user+system) * clockTick, errors.Join(err1, err2)
}

// TotalCPU returns the sum of CPU and ChildrenCPU.
func (p Process) TotalCPU() (time.Duration, error) {
	own, err := p.CPU()
	if err != nil {
		return 0, err
	}
	children, err := p.ChildrenCPU()
	return own + children, err
}

// RSS returns the resident memory in MiB; 0 if the process has ended.
func (p Process) RSS() float64 { return p.memory("VmRSS") }

// ProportionalRSS is RSS with the pages that several processes share divided among them.
func (p Process) ProportionalRSS() float64 { return p.kib("smaps_rollup", "Pss") }

// AnonymousRSS returns the part of RSS in MiB that is not of files; 0 if the process has ended.
func (p Process) AnonymousRSS() float64 { return p.memory("RssAnon") }

// PeakRSS returns the peak resident memory in MiB; 0 if the process has ended.
func (p Process) PeakRSS() float64 { return p.memory("VmHWM") }

// ResetPeakRSS resets PeakRSS to the present RSS.
func (p Process) ResetPeakRSS() { _ = os.WriteFile(p.file("clear_refs"), []byte("5"), 0) }

func (p Process) memory(line string) float64 { return p.kib("status", line) }

// kib returns a number of KiB from a file in MiB.
func (p Process) kib(file, line string) float64 {
	text, _ := os.ReadFile(p.file(file))
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				kib, _ := strconv.ParseFloat(f[0], 64)
				return kib / 1024
			}
		}
	}
	return 0
}

func (p Process) file(name string) string { return filepath.Join("/proc", strconv.Itoa(int(p)), name) }

// Children returns the present child processes.
func (p Process) Children() (out []Process) {
	lists, _ := filepath.Glob(p.file("task/*/children"))
	for _, l := range lists {
		text, _ := os.ReadFile(l)
		for _, f := range bytes.Fields(text) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				out = append(out, Process(pid))
			}
		}
	}
	return out
}

// ChildMonitor samples the memory of a process's children, because a child's peak is lost when it ends.
type ChildMonitor struct {
	stop chan struct{}
	wg   sync.WaitGroup
	peak float64
}

// pollInterval is short enough for programs that run for 100 ms, and costs 1 % of a CPU.
const pollInterval = 20 * time.Millisecond

// MonitorChildren starts a ChildMonitor.
func (p Process) MonitorChildren() *ChildMonitor {
	c := &ChildMonitor{stop: make(chan struct{})}
	c.wg.Go(func() {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for {
			for _, child := range p.Children() {
				c.peak = max(c.peak, child.PeakRSS())
			}
			select {
			case <-c.stop:
				return
			case <-tick.C:
			}
		}
	})
	return c
}

// Stop stops the monitor and returns the peak resident memory of any child, in MiB.
func (c *ChildMonitor) Stop() float64 {
	close(c.stop)
	c.wg.Wait()
	return c.peak
}
