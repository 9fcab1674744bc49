package engine

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// unreplied are the endpoints that get no new connections any more, with the time when the connections to them that have had no
// answer are deleted from the connection tracking table.
type unreplied struct {
	due     map[plan.Reset]time.Time
	omitted int // that were not added because of maxUnreplied, since the last deletion
	job     job
	dueAt   time.Time     // the earliest of due
	pause   time.Time     // no deletion before
	idle    time.Duration // the pause after a listing that finds nothing
}

const (
	// A connection that has begun when its endpoint loses its weight has this time for an answer. Hosts answer a handshake at
	// once. A client that has waited as long for an answer over UDP has sent its question again (resolv.conf(5): 5 s).
	handshakeWait = 250 * time.Millisecond
	datagramWait  = 5 * time.Second

	// maxUnreplied bounds unreplied.due. An element takes some 150 bytes.
	maxUnreplied = 10_000
	// maxUnrepliedShare bounds the CPU time of deletions: one part in so many of one processor.
	maxUnrepliedShare = 20
	unrepliedTimeout  = 5 * time.Second

	// A listing that finds nothing, as most do, is followed by a pause, which doubles from one to the next: listing an empty
	// table takes 8 ms of a processor where it has 262,144 buckets, ten times as much as programming a change.
	minIdlePause, maxIdlePause = 4 * time.Second, 16 * time.Second
)

// addLost adds the endpoints that lose their weight.
func (u *unreplied) addLost(d *plan.Delta, now time.Time) {
	for i := range d.Changes {
		c := &d.Changes[i]
		for _, a := range c.Lost() {
			u.add(plan.Reset{Frontend: c.Key, Endpoint: a}, now)
		}
	}
}

func (u *unreplied) add(r plan.Reset, now time.Time) {
	if _, known := u.due[r]; !known && len(u.due) == maxUnreplied {
		u.omitted++
		return
	}
	wait := handshakeWait
	if r.Frontend.Protocol == model.UDP {
		wait = datagramWait
	}
	u.due[r] = now.Add(wait)
	u.dueAt = earliest(u.dueAt, u.due[r])
}

// take returns the endpoints that are due and still get no new connections, except those of frontends that are not programmed as
// planned: these wait.
func (u *unreplied) take(p *plan.Plan, failed map[plan.Key]error, now time.Time) (list []plan.Reset) {
	u.dueAt = time.Time{}
	for r, at := range u.due {
		if failed[r.Frontend] != nil {
			at = later(at, now.Add(handshakeWait))
		}
		if at.After(now) {
			u.dueAt = earliest(u.dueAt, at)
			continue
		}
		delete(u.due, r)
		if f := p.Frontends[r.Frontend]; f == nil || !f.Takes(r.Endpoint) {
			list = append(list, r)
		}
	}
	return list
}

// deleteUnreplied starts a deletion if one is due, outside of the loop. The data plane must be in line with the plan: what is
// balanced again must find the new rules. It returns when the next one is due, zero if that follows from another step.
func (e *Engine) deleteUnreplied(ctx context.Context) time.Time {
	u := &e.unreplied
	if e.ConnTable == nil || e.Once || e.sync.full || u.job.running || len(u.due) == 0 {
		return time.Time{}
	}
	now := time.Now()
	if at := later(u.dueAt, u.pause); now.Before(at) {
		return at
	}
	list := u.take(e.Planner.Current(), e.sync.failed, now)
	if len(list) == 0 {
		return u.dueAt
	}
	u.job.start(ctx, unrepliedTimeout, func(during context.Context) func() {
		n := 0
		cpu, err := e.measure(func() (err error) { n, err = e.ConnTable.DeleteUnreplied(during, list); return err })
		return func() { e.unrepliedDeleted(ctx, list, n, cpu, err) }
	})
	return time.Time{}
}

// idlePause returns and remembers the pause for a listing that finds nothing: the shortest one again after a time without
// listings.
func (u *unreplied) idlePause(found bool, now time.Time) time.Duration {
	switch {
	case found:
		u.idle = 0
	case now.Sub(u.pause) > maxIdlePause:
		u.idle = minIdlePause
	default:
		u.idle = min(max(minIdlePause, 2*u.idle), maxIdlePause)
	}
	return u.idle
}

// unrepliedDeleted takes the result of a deletion. One that has failed is repeated.
func (e *Engine) unrepliedDeleted(ctx context.Context, list []plan.Reset, n int, cpu time.Duration, err error) {
	u, now := &e.unreplied, time.Now()
	u.pause = now.Add(max(handshakeWait, maxUnrepliedShare*cpu, u.idlePause(n > 0, now)))
	e.Observer.OnEvent(Event{Kind: UnrepliedDeleted, At: now, Duration: cpu, Count: n, Omitted: u.omitted, Err: err})
	u.omitted = 0
	switch {
	case err != nil && ctx.Err() == nil:
		u.pause = later(u.pause, now.Add(maxBackoff))
		for _, r := range list {
			u.add(r, now)
		}
		e.Log.Error("deleting connections without an answer failed", "endpoints", len(list), "first", list[0].Endpoint, "err", err, "retry_after", u.pause.Sub(now))
	case n > 0:
		e.Log.Info("deleted connections without an answer to endpoints that get no new ones", "endpoints", len(list), "connections", n)
	}
}
