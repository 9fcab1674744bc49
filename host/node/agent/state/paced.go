package state

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// countShare bounds the time that counting connections takes: one part in so many, and at most one count a second. Counting goes
// through the whole table of connections.
const countShare = 10

// pacedCounter counts connections one call at a time, and answers from the last count until the next one is due.
type pacedCounter struct {
	count CountConnections

	mu   sync.Mutex
	next time.Time
	last map[model.EndpointKey]uint32
	err  error
}

// Paced returns count such that it can be called often, by several clients at a time.
func Paced(count CountConnections) CountConnections { return (&pacedCounter{count: count}).Count }

// Count implements CountConnections. It counts again before it is due if something is to be counted that was not.
func (p *pacedCounter) Count(ctx context.Context, count map[model.EndpointKey]uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if begin := time.Now(); begin.After(p.next) || !p.covers(count) {
		fresh := make(map[model.EndpointKey]uint32, len(count))
		for k := range count {
			fresh[k] = 0
		}
		err := p.count(ctx, fresh)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.last, p.err = fresh, err
		p.next = time.Now().Add(max(time.Second, countShare*time.Since(begin)))
	}
	for k := range count {
		count[k] = p.last[k]
	}
	return p.err
}

func (p *pacedCounter) covers(count map[model.EndpointKey]uint32) bool {
	for k := range count {
		if _, ok := p.last[k]; !ok {
			return false
		}
	}
	return true
}
