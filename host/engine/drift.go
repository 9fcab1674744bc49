package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
)

// repairPause is the least time between two repairs, so that a program which fights us costs bounded work; a repair
// that took long makes it tenfold that.
const repairPause = 500 * time.Millisecond

// drift gathers what others have written since it was last dealt with.
type drift struct {
	mu      sync.Mutex
	foreign []backend.ExternalChange
	count   int
	ready   chan struct{}

	next time.Time // no repair before; used by the loop only
}

// keptForeign bounds how many transactions of others are named.
const keptForeign = 3

func (d *drift) heard(f backend.ExternalChange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count += f.Count; len(d.foreign) < keptForeign {
		d.foreign = append(d.foreign, f)
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

func (d *drift) take() (what, by string, count int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var whats, names []string
	for _, f := range d.foreign {
		if !slices.Contains(whats, f.Object) {
			whats = append(whats, f.Object)
		}
		if f.Process != "" && !slices.Contains(names, f.Process) {
			names = append(names, f.Process)
		}
	}
	count = d.count
	d.foreign, d.count = nil, 0
	return strings.Join(whats, "; "), strings.Join(names, ", "), count
}

// watch makes the backend notice what others write, if it can. check comes from time to time, for what it may miss.
func (e *Engine) watch() (check <-chan time.Time, stop func()) {
	w, ok := e.Backend.(backend.Watcher)
	if !ok {
		return nil, func() {}
	}
	unwatch, err := w.Watch(e.drift.heard)
	if err != nil {
		e.Log.Warn("what others change in the data plane shows only from time to time", "every", e.SyncPeriod, "err", err)
		unwatch = func() {}
	}
	if e.SyncPeriod <= 0 {
		return nil, unwatch
	}
	tick := time.NewTicker(e.SyncPeriod)
	return tick.C, func() { tick.Stop(); unwatch() }
}

// moved asks the backend whether something was missed.
func (e *Engine) moved(ctx context.Context) {
	w, ok := e.Backend.(backend.Watcher)
	if !ok || e.whole {
		return
	}
	moved, err := w.Drifted(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		e.Log.Warn("asking whether others have changed the data plane", "err", err)
	case moved:
		e.drift.heard(backend.ExternalChange{Object: "something that was not heard of", Count: 1})
	}
}

// repair makes the next Apply look at everything when others have written, and tells when else it is to do so.
func (e *Engine) repair(now time.Time) (due bool, at time.Time) {
	if !e.drift.pending() {
		return false, time.Time{}
	}
	if now.Before(e.drift.next) {
		return false, e.drift.next
	}
	what, by, count := e.drift.take()
	e.Observer.OnEvent(Event{Kind: DriftDetected, At: now, Count: count})
	if !e.whole {
		e.Log.Warn("somebody else has changed the data plane; looking at all of it", "what", what, "by", by, "changes", count)
	}
	e.whole = true
	return true, time.Time{}
}
