package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ticker receives the times at which updates are due from a process of its own through a pipe, as sluice receives changes from an
// API server. A timer of the measured process would measure that process's timers: they fire late while it collects garbage.
type ticker struct {
	cmd  *exec.Cmd
	pipe io.ReadCloser
}

// newTicker starts the process, which ticks until stop.
func newTicker(interval time.Duration) (*ticker, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &ticker{cmd: exec.Command(exe, "-ticks", interval.String())}
	t.cmd.Stderr = os.Stderr
	if t.pipe, err = t.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return t, t.cmd.Start()
}

// next waits for the next tick and returns its time.
func (t *ticker) next() (time.Time, error) {
	var b [8]byte
	if _, err := io.ReadFull(t.pipe, b[:]); err != nil {
		return time.Time{}, fmt.Errorf("wait for a tick: %w", err)
	}
	return time.Unix(0, int64(binary.NativeEndian.Uint64(b[:]))), nil
}

// nextAfter waits for the first tick that was due after a time.
func (t *ticker) nextAfter(begin time.Time) (due time.Time, err error) {
	for !due.After(begin) && err == nil {
		due, err = t.next()
	}
	return due, err
}

func (t *ticker) stop() error {
	t.pipe.Close() // its next write fails
	err := t.cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return nil
	}
	return err
}

// writeTicks writes the time to w at each interval. It does not sleep by a timer of Go, which may fire a millisecond late, and
// has real-time priority: a change comes from the network, by an interrupt, and does not wait for a processor until sluice leaves
// one.
func writeTicks(w io.Writer, interval time.Duration) error {
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		return fmt.Errorf("run with real-time priority: %w", err)
	}
	begin := time.Now()
	for n := 1; ; n++ {
		due := begin.Add(time.Duration(n) * interval)
		for left := time.Until(due); left > 0; left = time.Until(due) {
			sleep := unix.NsecToTimespec(left.Nanoseconds())
			_ = unix.Nanosleep(&sleep, nil) // interrupted: sleeps again
		}
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], uint64(due.UnixNano()))
		if _, err := w.Write(b[:]); err != nil {
			return err
		}
	}
}
