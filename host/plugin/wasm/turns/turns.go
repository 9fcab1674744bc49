// Package turns lets one at a time compile. Whoever has compiled for a while loses the turn to others that wait, and may wait
// again: what computes, sleeps or is stopped delays others by that time only.
package turns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// least is how long everybody has a turn. A large module takes 1.2 s on a processor of its own.
	least = 5 * time.Second
	// look is how often Await looks, and ends how long it waits for the end.
	look = 50 * time.Millisecond
	ends = time.Second
)

// ErrLost means that others come first.
var ErrLost = errors.New("compile: others come first")

// Turns are those of all that compile. The ones that have lost the fewest come first.
type Turns struct {
	// Least is how long everybody has a turn; twice as long against those that have lost one, and so on. 0 means 5 s.
	Least time.Duration

	mu    sync.Mutex
	held  *Turn
	queue []*Turn
}

// Turn is one of Turns.
type Turn struct {
	lost  int           // how many before it
	ready chan struct{} // closed when it begins
	begun time.Time
	short bool // plugins that are loaded lack memory
}

// Take waits for a turn, after others were lost. Give ends it.
func (t *Turns) Take(ctx context.Context, lost int) (*Turn, error) {
	x := &Turn{lost: lost, ready: make(chan struct{})}
	t.mu.Lock()
	at := len(t.queue)
	for at > 0 && t.queue[at-1].lost > lost {
		at--
	}
	t.queue = slices.Insert(t.queue, at, x)
	t.next()
	t.mu.Unlock()
	select {
	case <-x.ready:
		return x, nil
	case <-ctx.Done():
		t.Give(x)
		return nil, fmt.Errorf("compile: %w", ctx.Err())
	}
}

// Give ends a turn, wherever it is, and returns how long it has lasted.
func (t *Turns) Give(x *Turn) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == x {
		t.held = nil
	}
	t.queue = slices.DeleteFunc(t.queue, func(other *Turn) bool { return other == x })
	t.next()
	return time.Since(x.begun)
}

func (t *Turns) next() {
	if t.held != nil || len(t.queue) == 0 {
		return
	}
	t.held, t.queue = t.queue[0], t.queue[1:]
	t.held.begun = time.Now()
	close(t.held.ready)
}

// Lost returns how many turns were lost before the one that is held; -1: nobody has one.
func (t *Turns) Lost() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		return -1
	}
	return t.held.lost
}

// Lacking says that a plugin that is loaded lacks memory, which whoever compiles may have.
func (t *Turns) Lacking() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held != nil {
		t.held.short = true
	}
}

func (t *Turns) leastTime() time.Duration { return cmp.Or(t.Least, least) }

// isLost reports whether a turn has lasted so long that another one comes now.
func (t *Turns) isLost(x *Turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	after := func(lost int) bool { return time.Since(x.begun) >= t.leastTime()<<min(lost, 16) }
	return t.held == x && (x.short && after(x.lost) || len(t.queue) > 0 && after(t.queue[0].lost))
}

// Await waits for the end of a child process that has a turn. Before it, kill is called and the error is ErrLost when the turn is
// lost, or that of check.
func (t *Turns) Await(ctx context.Context, x *Turn, child <-chan error, check func() error, kill func()) (ended bool, err error) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case err := <-child:
			return true, err
		case <-ctx.Done():
			return false, fmt.Errorf("compile: %w", ctx.Err())
		case <-ticker.C:
		}
		err := check()
		if err == nil && !t.isLost(x) {
			continue
		}
		kill()
		select {
		case <-child:
		case <-time.After(ends):
		}
		return false, cmp.Or(err, ErrLost)
	}
}

// Yield waits until plugins that lacked memory in a turn have tried again.
func (t *Turns) Yield(ctx context.Context, x *Turn) {
	if !x.short { // the turn is over
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(t.leastTime()):
	}
}

// Do calls f in a turn, which ends early if f takes long.
func (t *Turns) Do(x *Turn, f func() error) error {
	defer time.AfterFunc(t.leastTime(), func() { t.Give(x) }).Stop()
	defer t.Give(x)
	return f()
}
