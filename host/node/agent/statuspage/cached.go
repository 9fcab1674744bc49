package statuspage

import (
	"context"
	"time"
)

// readShare bounds the time that a cached value is read in: one part in so many.
const readShare = 10

// cached is a value of the engine that costs as much as there are Services. It is read again only after something has changed,
// and not before the share of time is kept, however many clients ask for it.
type cached[T any] struct {
	read    func(context.Context) (T, error)
	version func() uint64

	lock  chan struct{} // has one element while it is locked
	value T
	valid bool
	of    uint64 // the version of value
	next  time.Time
}

func newCached[T any](version func() uint64, read func(context.Context) (T, error)) *cached[T] {
	return &cached[T]{read: read, version: version, lock: make(chan struct{}, 1)}
}

// Get returns the value. It is read-only.
func (c *cached[T]) Get(ctx context.Context) (T, error) {
	select {
	case c.lock <- struct{}{}:
		defer func() { <-c.lock }()
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
	begin, version := time.Now(), c.version()
	if c.valid && (c.of == version || begin.Before(c.next)) {
		return c.value, nil
	}
	value, err := c.read(ctx)
	if err != nil {
		return value, err
	}
	c.value, c.valid, c.of = value, true, version
	c.next = time.Now().Add(readShare * time.Since(begin))
	return value, nil
}
