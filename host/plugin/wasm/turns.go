package wasm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// turns let one at a time use the memory for compiling. Whoever has had it for a while loses it to others that wait, and may wait again: a
// process that computes, sleeps or is stopped delays others by that time only. Those that have lost it least often come first.
type turns struct {
	least time.Duration // that everybody has; twice as long against those that have lost one, and so on

	mu    sync.Mutex
	held  *turn
	queue []*turn
}

// turn is one of turns.
type turn struct {
	lost  int           // how many before it
	ready chan struct{} // closed when it begins
	begun time.Time
	short bool // plugins that are loaded lack memory
}

// turnTime is turns.least. A large module takes 1.2 s on a processor of its own.
const turnTime = 5 * time.Second

// take waits for a turn after others were lost. Its end is give.
func (t *turns) take(ctx context.Context, lost int) (*turn, error) {
	x := &turn{lost: lost, ready: make(chan struct{})}
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
		t.give(x)
		return nil, fmt.Errorf("compile: %w", ctx.Err())
	}
}

// give ends a turn, wherever it is.
func (t *turns) give(x *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == x {
		t.held = nil
	}
	t.queue = slices.DeleteFunc(t.queue, func(other *turn) bool { return other == x })
	t.next()
}

func (t *turns) next() {
	if t.held != nil || len(t.queue) == 0 {
		return
	}
	t.held, t.queue = t.queue[0], t.queue[1:]
	t.held.begun = time.Now()
	close(t.held.ready)
}

// lost reports whether a turn has lasted so long that another one comes now.
func (t *turns) lost(x *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	after := func(lost int) bool { return time.Since(x.begun) >= t.least<<min(lost, 16) }
	return t.held == x && (x.short && after(x.lost) || len(t.queue) > 0 && after(t.queue[0].lost))
}

// lacking says that a plugin that is loaded lacks memory.
func (t *turns) lacking() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held != nil {
		t.held.short = true
	}
}
