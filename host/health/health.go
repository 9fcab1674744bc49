// Package health tells load balancers and the node's agent how this node is: /healthz and /livez, and the health check
// port of each Service of type LoadBalancer with externalTrafficPolicy Local. It is an engine.Observer.
//
// One rule holds for all of it: bad news is told as soon as it is planned, good news only once the kernel holds it. So
// a load balancer that trusts the answer never sends here too early, and stops before it is too late.
package health

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
)

// Options of Health. Answered and Failed may be nil.
type Options struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time // time.After
	Log   *slog.Logger
	// SyncPeriod: the proxy is unhealthy when an update has waited for twice as long.
	SyncPeriod time.Duration
	// OnAnswer is told of each answer on /healthz and /livez.
	OnAnswer func(path string, code int)
	// StaleReason says why cluster state may be old, "" when it is not; nil: it never is. It is asked for the reason that an answer
	// gives, and makes nobody unhealthy.
	StaleReason func() string
	// OnListenError is told when a Service's health check port cannot be listened on, once a reason.
	OnListenError func(service model.Name, err error)
}

// Health knows how the node is. All methods may be called from several goroutines.
type Health struct {
	opt  Options
	ctx  context.Context // of the listeners
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu             sync.Mutex
	synced         bool      // the cluster's first state is complete: before, the proxy starts and nothing is late
	oldestQueued   time.Time // since when the oldest update waits that has not been taken
	oldestDequeued time.Time // the same of those that have been, and are not in the data plane
	lastSynced     time.Time // when the data plane last held everything
	eligible       phased[bool]
	checks         map[model.Name]*check
	pending        map[model.Name]*check // planned, and not in the data plane
	addrs          []netip.Addr          // where health check ports listen
	closing        map[netip.AddrPort]chan struct{}
}

// phased is what was planned, and what the data plane holds.
type phased[T any] struct{ planned, programmed T }

// New makes a Health; Close ends what it listens on.
func New(o Options) *Health {
	ctx, stop := context.WithCancel(context.Background())
	return &Health{opt: o, ctx: ctx, stop: stop, checks: map[model.Name]*check{}, pending: map[model.Name]*check{},
		closing: map[netip.AddrPort]chan struct{}{}}
}

// Close stops listening on all health check ports.
func (h *Health) Close() {
	h.mu.Lock() // no listener begins after this
	h.stop()
	h.mu.Unlock()
	h.wg.Wait()
}

// OnEnqueue implements engine.Observer.
func (h *Health) OnEnqueue(changes []model.Change, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = h.synced || slices.ContainsFunc(changes, func(c model.Change) bool { return c.Kind == model.Synced })
	if h.synced && h.oldestQueued.IsZero() {
		h.oldestQueued = at
	}
}

// OnDequeue implements engine.Observer.
func (h *Health) OnDequeue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.oldestDequeued.IsZero() {
		h.oldestDequeued = h.oldestQueued
	}
	h.oldestQueued = time.Time{}
}

// OnPlan implements engine.Observer.
func (h *Health) OnPlan(p *engine.PlannedStep) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible.planned = p.Step.Own.Eligible
	if !slices.Equal(h.addrs, p.Step.Own.HealthAddrs) {
		h.addrs = slices.Clone(p.Step.Own.HealthAddrs)
		for _, c := range h.checks {
			h.listen(c)
		}
	}
	for _, goes := range []bool{true, false} { // first what goes: a port may pass from one Service to another
		for i := range p.Step.Health {
			if now := &p.Step.Health[i]; (now.Port == 0) == goes {
				h.planCheck(now)
			}
		}
	}
}

// planCheck takes the new state of a Service's health check in.
func (h *Health) planCheck(now *planner.HealthCheck) {
	c := h.checks[now.Service]
	if now.Port == 0 {
		if c != nil {
			delete(h.checks, now.Service)
			delete(h.pending, now.Service)
			c.planned = *now
			h.listen(c)
		}
		return
	}
	if c == nil {
		c = &check{servers: map[netip.AddrPort]*server{}}
		h.checks[now.Service] = c
	}
	c.planned = *now
	h.pending[now.Service] = c
	h.listen(c)
}

// OnApply implements engine.Observer.
func (h *Health) OnApply(p *engine.ApplyResult) {
	if !p.Synced {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.oldestDequeued, h.lastSynced = time.Time{}, p.At
	h.eligible.programmed = h.eligible.planned
	for _, c := range h.pending {
		c.programmed = c.planned
	}
	clear(h.pending)
}

// OnEvent implements engine.Observer.
func (h *Health) OnEvent(engine.Event) {}

// reason says why the answer is 503, "" when it is not. The caller holds the lock.
func (h *Health) reason(now time.Time, node bool) string {
	switch {
	case !h.healthy(now):
		since := h.oldestQueued
		if since.IsZero() || !h.oldestDequeued.IsZero() && h.oldestDequeued.Before(since) {
			since = h.oldestDequeued
		}
		return "an update has waited for " + now.Sub(since).Round(time.Second).String() + " to be programmed"
	case !node || h.eligible.planned && h.eligible.programmed:
		return ""
	case !h.synced:
		return "the cluster's state has not been read yet"
	case !h.eligible.planned:
		return "this node's Node is not there, or is about to go"
	default:
		return "the data plane has not taken in what is planned yet"
	}
}

// healthy tells whether the proxy keeps up, and when it last had. The caller holds the lock.
func (h *Health) healthy(now time.Time) bool {
	for _, since := range []time.Time{h.oldestQueued, h.oldestDequeued} {
		if !since.IsZero() && now.Sub(since) >= 2*h.opt.SyncPeriod {
			return false
		}
	}
	return true
}
