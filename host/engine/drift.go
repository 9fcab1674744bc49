package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
)

// Repairs are at least minRepairInterval apart, which bounds the work that a process that keeps changing the data plane can
// cause. A repair that takes long delays the next one by ten times its duration, but at most by maxRepairInterval: it also seems
// to take long if the machine stands still.
const (
	minRepairInterval = 500 * time.Millisecond
	maxRepairInterval = 30 * time.Second
)

// drift collects external changes since the last repair.
type drift struct {
	mu      sync.Mutex
	changes []backend.ExternalChange
	count   int
	ready   chan struct{}

	nextRepair time.Time // used by the loop only
}

// maxNamedChanges bounds the external changes that are logged by name.
const maxNamedChanges = 3

func (d *drift) onChange(c backend.ExternalChange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count += c.Count; len(d.changes) < maxNamedChanges {
		d.changes = append(d.changes, c)
	}
	select {
	case d.ready <- struct{}{}:
	default:
	}
}

func (d *drift) pending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count > 0
}

func (d *drift) take() (objects, processes string, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var objectNames, processNames []string
	for _, c := range d.changes {
		if !slices.Contains(objectNames, c.Object) {
			objectNames = append(objectNames, c.Object)
		}
		if c.Process != "" && !slices.Contains(processNames, c.Process) {
			processNames = append(processNames, c.Process)
		}
	}
	count = d.count
	d.changes, d.count = nil, 0
	return strings.Join(objectNames, "; "), strings.Join(processNames, ", "), count
}

// watch subscribes to external changes if the backend detects them. check ticks for those that it may miss. It is called once the
// plan is programmed: for a subscriber, the kernel makes a notification of each of a cluster's elements.
func (e *Engine) watch() (check <-chan time.Time, stop func()) {
	e.watched = true
	w, ok := e.Backend.(backend.Watcher)
	if !ok {
		return nil, func() {}
	}
	unwatch, err := w.Watch(e.drift.onChange)
	if err != nil {
		e.Log.Warn("cannot watch the data plane for external changes; checking periodically", "interval", e.SyncPeriod, "err", err)
		unwatch = func() {}
	}
	if e.SyncPeriod <= 0 {
		return nil, unwatch
	}
	tick := time.NewTicker(e.SyncPeriod)
	return tick.C, func() { tick.Stop(); unwatch() }
}

// checkDrift looks for external changes that the watch missed.
func (e *Engine) checkDrift(ctx context.Context) {
	w, ok := e.Backend.(backend.Watcher)
	if !ok || e.sync.full {
		return
	}
	e.releaseBackend()
	drifted, err := w.Drifted(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		e.Log.Warn("checking the data plane for external changes failed", "err", err)
	case drifted:
		e.drift.onChange(backend.ExternalChange{Object: "unknown object", Count: 1})
	}
}

// repair makes the next Apply a full sync after external changes. If that has to wait, it returns until when.
func (e *Engine) repair(now time.Time) (due bool, at time.Time) {
	if !e.drift.pending() {
		return false, time.Time{}
	}
	if now.Before(e.drift.nextRepair) {
		return false, e.drift.nextRepair
	}
	objects, processes, count := e.drift.take()
	e.Observer.OnEvent(Event{Kind: DriftDetected, At: now, Count: count, Objects: objects, Processes: processes})
	if !e.sync.full {
		e.Log.Warn("data plane changed by another process; running a full sync", "objects", objects, "processes", processes,
			"changes", count)
	}
	e.sync.full = true
	return true, time.Time{}
}
