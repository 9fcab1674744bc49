package engine

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// staleUDP are the frontends whose UDP flows may be stale. These are deleted outside of the loop, once the plan that makes them
// stale is programmed, as often as their part of a processor allows: what comes meanwhile is one deletion. It survives failures
// and a change of the backend; a new process begins with all frontends that it programs.
type staleUDP struct {
	pending map[plan.Key]bool
	former  map[netip.Addr]bool // addresses that serve NodePorts no longer
	omitted int                 // frontends that were not added because of maxGoneUDP, since the last deletion
	job     job
	flows   *sharedFlows // of the deletion that runs
	pause   time.Time    // no deletion before
	counted time.Time    // when the flows that are kept were counted
}

const (
	// maxGoneUDP bounds the frontends that are gone in staleUDP.pending. One takes some 100 bytes.
	maxGoneUDP = 100_000
	// maxStaleUDPShare bounds the CPU time of deletions: one part in so many of one processor. The flows of all Services wait for
	// the next one, so that maxStaleUDPPause goes first.
	maxStaleUDPShare = 20
	maxStaleUDPPause = 5 * time.Second
	staleUDPTimeout  = 30 * time.Second
	// stopTimeout bounds the deletion at the end of Run, of what a new process does not know.
	stopTimeout = time.Second
	// keptInterval is the minimum time between two counts of flows that are kept.
	keptInterval = 30 * time.Second
)

// sharedFlows are the flows of a deletion that runs, which the loop amends.
type sharedFlows struct {
	mu    sync.Mutex
	flows plan.UDPFlows
	kept  int
}

func (s *sharedFlows) stale(to, endpoint netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale, kept := s.flows.Find(to, endpoint)
	if kept {
		s.kept++
	}
	return stale
}

// renew makes the deletion that runs spare the flows that begin once a delta is programmed. Call it before.
func (s *staleUDP) renew(d *plan.Delta) {
	if !s.job.running {
		return
	}
	s.flows.mu.Lock()
	defer s.flows.mu.Unlock()
	for i := range d.Changes {
		if c := &d.Changes[i]; c.New != nil && c.Key.Protocol == model.UDP {
			s.flows.flows.Renew(c.New)
		}
	}
	if d.Global != nil {
		s.flows.flows.NodePorts = d.Global.NodePortAddrs
	}
}

// add adds the frontends of a step, and those that the backend has removed without a delta.
func (s *staleUDP) add(p *plan.Plan, step *planner.Result, b backend.Backend) {
	for _, k := range step.StaleUDP {
		s.addOne(p, k)
	}
	if b, ok := b.(backend.UDPRemover); ok {
		for _, k := range b.RemovedUDP() {
			s.addOne(p, k)
		}
	}
	for _, a := range step.FormerNodePortAddrs {
		s.former[a] = true
	}
}

func (s *staleUDP) addOne(p *plan.Plan, k plan.Key) {
	if len(s.pending) >= len(p.Frontends)+maxGoneUDP && !s.pending[k] {
		s.omitted++
		return
	}
	s.pending[k] = true
}

// take returns the pending frontends, except those that are not programmed as planned: these wait.
func (s *staleUDP) take(failed map[plan.Key]error) (list []plan.Key) {
	waiting := map[plan.Key]bool{} // one that was large would stay so
	for k := range s.pending {
		if failed[k] == nil {
			list = append(list, k)
		} else {
			waiting[k] = true
		}
	}
	s.pending = waiting
	return list
}

// deleteStaleUDP starts a deletion if one is due. The data plane must be in line with the plan: what is balanced again must find
// the new rules. It returns when the next one is due, zero if that follows from another step.
func (e *Engine) deleteStaleUDP(ctx context.Context) time.Time {
	s, now := &e.stale, time.Now()
	if e.ConnTable == nil || e.sync.full || s.job.running {
		return time.Time{}
	}
	var due time.Time
	if e.Planner.KeepsUDP() {
		due = s.counted.Add(keptInterval)
	}
	count := !due.IsZero() && !now.Before(due)
	if len(s.pending) > 0 || len(s.former) > 0 {
		due = now
	}
	if due.IsZero() {
		return due
	}
	if due = later(due, s.pause); now.Before(due) {
		return due
	}
	list := s.take(e.sync.failed)
	if len(list) == 0 && len(s.pending) > 0 && !count {
		s.pause = now.Add(time.Second) // all of them wait, for a step that programs one
		return time.Time{}
	}
	if count {
		s.counted = now
		list = e.Planner.AddKeptUDP(list)
	}
	e.startStaleUDP(ctx, list, count, staleUDPTimeout)
	if e.Once {
		s.job.wait(false)
	}
	return time.Time{}
}

// deletedUDP is the result of a deletion in one family.
type deletedUDP struct {
	family    model.Family
	frontends []plan.Key
	at        time.Time
	took, cpu time.Duration
	n         int
	err       error
}

// startStaleUDP deletes the stale flows to frontends. count is whether all those with flows that are kept are among them.
func (e *Engine) startStaleUDP(ctx context.Context, list []plan.Key, count bool, timeout time.Duration) {
	s := &e.stale
	flows, former := &sharedFlows{flows: e.Planner.UDPFlows(list)}, slices.Collect(maps.Keys(s.former))
	flows.flows.Former, s.flows = former, flows
	if len(s.pending) == 0 { // else NodePorts may wait
		clear(s.former)
	}
	families := []deletedUDP{{family: model.IPv4}, {family: model.IPv6}}
	for k := range flows.flows.Frontends {
		for i := range families {
			if families[i].family == k.Family() {
				families[i].frontends = append(families[i].frontends, k)
			}
		}
	}
	s.job.start(ctx, timeout, func(during context.Context) func() {
		for i := range families {
			f := &families[i]
			if len(f.frontends) == 0 {
				continue
			}
			f.at = time.Now()
			f.cpu, f.err = e.measure(func() (err error) {
				f.n, err = e.ConnTable.DeleteStaleUDP(during, f.family, f.frontends, flows.stale)
				return err
			})
			f.took = time.Since(f.at)
		}
		return func() { e.staleUDPDeleted(ctx, families, list, former, count) }
	})
}

// staleUDPDeleted takes the result of a deletion. One that has failed is repeated.
func (e *Engine) staleUDPDeleted(ctx context.Context, families []deletedUDP, list []plan.Key, former []netip.Addr, count bool) {
	s, now := &e.stale, time.Now()
	cpu := time.Duration(0)
	s.pause = now
	for i := range families {
		f := &families[i]
		if len(f.frontends) == 0 {
			continue
		}
		cpu += f.cpu
		e.Observer.OnEvent(Event{Kind: StaleFlowsDeleted, Family: f.family, At: f.at, Duration: f.took, Count: f.n, Omitted: s.omitted, Err: f.err})
		s.omitted = 0
		if f.n > 0 {
			e.Log.Info("deleted stale UDP flows", "family", f.family, "flows", f.n)
		}
		if f.err == nil {
			continue
		}
		for _, k := range list {
			if k.Family() == f.family {
				s.addOne(e.Planner.Current(), k)
			}
		}
		for _, a := range former {
			s.former[a] = true
		}
		if ctx.Err() == nil {
			s.pause = now.Add(maxBackoff)
			e.Log.Error("deleting stale UDP flows failed", "family", f.family, "err", f.err, "retry_after", maxBackoff)
		}
	}
	s.pause = later(s.pause, now.Add(min(maxStaleUDPShare*cpu, maxStaleUDPPause)))
	if count || !e.Planner.KeepsUDP() {
		e.Observer.OnEvent(Event{Kind: UDPFlowsKept, At: now, Count: s.flows.kept})
	}
	s.flows = nil
}

// stopStaleUDP ends the deletion that runs, and deletes the flows of frontends that are gone, of which a new process does not
// know.
func (e *Engine) stopStaleUDP() {
	s := &e.stale
	s.job.wait(true)
	if e.ConnTable == nil || e.sync.full {
		return
	}
	gone := slices.DeleteFunc(s.take(nil), func(k plan.Key) bool { return e.Planner.Current().Frontends[k] != nil })
	if len(gone)+len(s.former) == 0 {
		return
	}
	e.startStaleUDP(context.Background(), gone, false, stopTimeout)
	s.job.wait(false)
}
