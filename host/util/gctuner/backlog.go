package gctuner

import (
	"context"
	"time"
)

// backlogEnd is how long after the last Pending a backlog ends.
const backlogEnd = 300 * time.Millisecond

// Backlog postpones garbage collection while changes wait to be programmed: a collection makes all of them take longer, most on a
// machine with few processors. The garbage of a backlog is collected after its end, or when there is three times as much as is
// allowed otherwise.
type Backlog struct{ pending chan struct{} }

// NewBacklog returns a Backlog. Run makes it work.
func NewBacklog() *Backlog { return &Backlog{make(chan struct{}, 1)} }

// Pending reports that there is a backlog. It is cheap and does not wait.
func (b *Backlog) Pending() {
	select {
	case b.pending <- struct{}{}:
	default:
	}
}

// Run sets GOGC from Pending until ctx ends. after is time.After.
func (b *Backlog) Run(ctx context.Context, after func(time.Duration) <-chan time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.pending:
		}
		setBacklog(true)
		for again := true; again; {
			select {
			case <-ctx.Done():
			case <-after(backlogEnd):
			}
			select {
			case <-b.pending:
				again = ctx.Err() == nil
			default:
				again = false
			}
		}
		setBacklog(false)
	}
}
