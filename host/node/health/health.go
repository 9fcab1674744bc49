// Package health serves /healthz and /livez, and the health check port of each Service of type LoadBalancer with
// externalTrafficPolicy Local. It implements engine.Observer.
//
// A change for the worse is reported when it is planned, a change for the better when it is programmed. So a load balancer
// never sends traffic before the data plane is ready, and stops before the data plane changes.
package health

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
)

// maxConns is the maximum number of connections to all health check ports together.
const maxConns = 512

// Options of Health. OnAnswer, StaleReason, OnEvict and OnListenError may be nil.
type Options struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time // time.After
	Log   *slog.Logger
	// SyncPeriod: the proxy is unhealthy if an update has been pending for twice as long.
	SyncPeriod time.Duration
	// OnAnswer is called for each response on /healthz and /livez.
	OnAnswer func(path string, code int)
	// StaleReason returns why the cluster state may be out of date, or "". It is appended to the reason of a 503; stale
	// state alone does not make the proxy unhealthy.
	StaleReason func() string
	// OnEvict is called for each connection to a health check port that is closed because too many are open.
	OnEvict func()
	// OnListenError is called when listening on a Service's health check port fails, once per distinct error.
	OnListenError func(service model.Name, err error)
}

// Health is the health of the proxy and of its node. It is safe for concurrent use.
type Health struct {
	opt  Options
	ctx  context.Context // of the listeners
	stop context.CancelFunc
	wg   sync.WaitGroup
	// limiter bounds the connections to health check ports.
	limiter *httpserve.Limiter

	mu             sync.Mutex
	synced         bool      // the initial state is complete; until then no update counts as pending
	oldestQueued   time.Time // arrival of the oldest update that is not dequeued
	oldestDequeued time.Time // arrival of the oldest update that is dequeued but not programmed
	lastSynced     time.Time // when everything planned was last programmed
	eligible       phased[bool]
	checks         map[model.Name]*check
	pending        map[model.Name]*check // planned but not programmed
	addrs          []netip.Addr          // on which health check ports listen
	closing        map[netip.AddrPort]chan struct{}
}

// phased is a value as planned and as programmed.
type phased[T any] struct{ planned, programmed T }

// New returns a Health without listeners. Close must be called to release those that are added.
func New(o Options) *Health {
	ctx, stop := context.WithCancel(context.Background())
	return &Health{opt: o, ctx: ctx, stop: stop, checks: map[model.Name]*check{}, pending: map[model.Name]*check{},
		closing: map[netip.AddrPort]chan struct{}{}, limiter: httpserve.NewLimiter(maxConns, o.OnEvict)}
}

// Close stops listening on all health check ports.
func (h *Health) Close() {
	h.mu.Lock() // no listener is added after this
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
	h.eligible.planned = p.Result.NodeStatus.Eligible
	var changed []*check
	for i := range p.Result.HealthChecks {
		changed = append(changed, h.planCheck(&p.Result.HealthChecks[i]))
	}
	if !slices.Equal(h.addrs, p.Result.NodeStatus.HealthAddrs) {
		h.addrs = slices.Clone(p.Result.NodeStatus.HealthAddrs)
		changed = slices.AppendSeq(changed, maps.Values(h.checks))
	}
	h.listen(changed)
}

// planCheck records the planned state of a Service's health check. The caller holds the lock.
func (h *Health) planCheck(now *tally.HealthCheck) *check {
	c := h.checks[now.Service]
	if c == nil {
		c = &check{servers: map[netip.AddrPort]*server{}}
		h.checks[now.Service] = c
	}
	c.planned = *now
	h.pending[now.Service] = c
	if now.Port == 0 {
		delete(h.checks, now.Service)
		delete(h.pending, now.Service)
	}
	return c
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

// reason returns why the response is 503, or "" if it is 200. The caller holds the lock.
func (h *Health) reason(now time.Time, includeNode bool) string {
	switch {
	case !h.healthy(now):
		since := h.oldestQueued
		if since.IsZero() || !h.oldestDequeued.IsZero() && h.oldestDequeued.Before(since) {
			since = h.oldestDequeued
		}
		return "an update has been pending for " + now.Sub(since).Round(time.Second).String()
	case !includeNode || h.eligible.planned && h.eligible.programmed:
		return ""
	case !h.synced:
		return "the initial cluster state is not complete"
	case !h.eligible.planned:
		return "the Node is absent or being deleted"
	default:
		return "the initial plan is not programmed"
	}
}

// healthy reports whether no update has been pending for too long. The caller holds the lock.
func (h *Health) healthy(now time.Time) bool {
	for _, since := range []time.Time{h.oldestQueued, h.oldestDequeued} {
		if !since.IsZero() && now.Sub(since) >= 2*h.opt.SyncPeriod {
			return false
		}
	}
	return true
}
