// Package localhostproxy serves TCP NodePorts on loopback addresses (KEP-6032). Unlike all other connections, these are accepted
// by this process, which connects to an endpoint and copies: the kernel does not forward packets with a loopback source. It
// implements engine.Observer: the plan names the NodePorts, their endpoints, weights and session affinity.
package localhostproxy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
)

// Options of a Proxy.
type Options struct {
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time // time.After
	Log   *slog.Logger
	// MaxConnections bounds the connections of all Services, MaxPerService those of one, MaxListeners the sockets. A connection
	// or socket beyond is refused and counted.
	MaxConnections, MaxPerService, MaxListeners int
	DialTimeout                                 time.Duration
}

// Stats are counts since the start, except for Listeners, Failing, Unsupported, Open and Serving.
type Stats struct {
	Listeners      int  // that accept connections
	Failing        int  // that cannot be opened, or are beyond MaxListeners
	Unsupported    int  // NodePorts that are not served on loopback addresses because their protocol is not TCP
	Open           int  // connections
	Serving        bool // nodePortAddresses selects loopback addresses
	ListenFailures uint64
	// FamilyListeners and FamilyFailures are Listeners and ListenFailures of IPv4 and IPv6.
	FamilyListeners [2]int
	FamilyFailures  [2]uint64
	Accepted        uint64 // connections, of which
	DialFailures    uint64 // could not be connected to their endpoint
	OverTotal       uint64 // connections refused because of MaxConnections
	OverService     uint64 // connections refused because of MaxPerService
	NotLoopback     uint64 // connections refused because they came from another host
}

// Proxy is the userspace proxy of one node. It is safe for concurrent use.
type Proxy struct {
	engine.Observers // none: the other methods do nothing

	opt   Options
	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup // listeners
	conns sync.WaitGroup // connections

	mu         sync.Mutex
	addrs      []netip.Addr                // sorted
	frontends  map[plan.Key]*plan.Frontend // TCP NodePorts, with or without endpoints
	other      map[plan.Key]struct{}       // UDP and SCTP NodePorts
	listeners  map[plan.Key][]*listener
	sockets    int                   // listeners, open or not
	omitted    map[plan.Key]struct{} // beyond MaxListeners
	pins       map[plan.Key]pin
	open       map[*connection]struct{}
	perService map[model.Name]int
	stats      Stats
}

// pin is the session affinity of a NodePort. All its clients have the same address, so they have the same endpoint.
type pin struct {
	endpoint netip.AddrPort
	last     time.Time // of the last connection
}

// New returns a Proxy without listeners. Close must be called.
func New(o Options) *Proxy {
	ctx, stop := context.WithCancel(context.Background())
	return &Proxy{opt: o, ctx: ctx, stop: stop, frontends: map[plan.Key]*plan.Frontend{}, other: map[plan.Key]struct{}{},
		listeners: map[plan.Key][]*listener{}, omitted: map[plan.Key]struct{}{}, pins: map[plan.Key]pin{},
		open: map[*connection]struct{}{}, perService: map[model.Name]int{}}
}

// Close stops listening, resets all connections and waits for their end.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.stop()
	for key := range p.listeners {
		p.closeListeners(key)
	}
	p.mu.Unlock()
	p.tasks.Wait() // no connection is accepted after this
	p.mu.Lock()
	for c := range p.open {
		c.end()
	}
	p.mu.Unlock()
	p.conns.Wait()
}

// OnPlan implements engine.Observer.
func (p *Proxy) OnPlan(s *engine.PlannedStep) { p.Update(s.Result) }

// Update follows a plan.
func (p *Proxy) Update(r *planner.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return
	}
	for i := range r.Delta.Changes {
		c := &r.Delta.Changes[i]
		switch {
		case !c.Key.IsNodePort():
		case c.Key.Protocol != model.TCP && c.New == nil:
			delete(p.other, c.Key)
		case c.Key.Protocol != model.TCP:
			p.other[c.Key] = struct{}{}
		default:
			p.setFrontend(c.Key, c.New)
		}
	}
	if !slices.Equal(p.addrs, r.NodeStatus.LocalhostAddrs) {
		p.addrs = slices.Clone(r.NodeStatus.LocalhostAddrs)
		for key := range p.frontends {
			p.reconcile(key)
		}
	}
	if len(p.omitted) > 0 && p.sockets < p.opt.MaxListeners {
		for key := range p.omitted {
			p.reconcile(key)
		}
	}
	if len(r.Resets) > 0 && len(p.open) > 0 {
		p.resetConnections(r.Resets)
	}
}

func (p *Proxy) setFrontend(key plan.Key, f *plan.Frontend) {
	before := p.frontends[key]
	if f == nil {
		delete(p.frontends, key)
	} else {
		p.frontends[key] = f
	}
	if f == nil || f.Affinity == 0 || before != nil && before.Owner != f.Owner {
		delete(p.pins, key)
	}
	p.reconcile(key)
}

func (p *Proxy) resetConnections(resets []plan.Reset) {
	type target struct {
		key      plan.Key
		endpoint netip.AddrPort
	}
	due := make(map[target]bool, len(resets))
	for _, r := range resets {
		due[target{r.Frontend, r.Endpoint}] = true
	}
	for c := range p.open {
		if due[target{c.key, c.endpoint}] {
			c.end()
		}
	}
}

// reconcile opens and closes the sockets of a NodePort.
func (p *Proxy) reconcile(key plan.Key) {
	delete(p.omitted, key)
	var want []netip.AddrPort
	if f := p.frontends[key]; f != nil && poolOf(f).Verdict == plan.Forward {
		for _, a := range p.addrs {
			if model.FamilyOf(a) == key.Family() {
				want = append(want, netip.AddrPortFrom(a, key.Port))
			}
		}
	}
	have := p.listeners[key]
	if slices.EqualFunc(have, want, func(l *listener, at netip.AddrPort) bool { return l.at == at }) {
		return
	}
	p.closeListeners(key)
	if len(want) > p.opt.MaxListeners-p.sockets {
		p.omitted[key] = struct{}{}
		p.failed(want[0])
		p.opt.Log.Error("not listening on loopback for a NodePort: too many listeners", "service", p.frontends[key].Owner, "port", key.Port,
			"maximum", p.opt.MaxListeners)
		return
	}
	for _, at := range want {
		ctx, stop := context.WithCancel(p.ctx)
		l := &listener{at: at, stop: stop}
		p.listeners[key] = append(p.listeners[key], l)
		p.sockets++
		p.tasks.Go(func() { p.listen(ctx, l, key) })
	}
}

// failed counts a socket that could not be opened.
func (p *Proxy) failed(at netip.AddrPort) {
	p.stats.ListenFailures++
	p.stats.FamilyFailures[familyOf(at)]++
}

func familyOf(at netip.AddrPort) int {
	if at.Addr().Is6() {
		return 1
	}
	return 0
}

// closeListeners closes the sockets of a NodePort. Connections go on.
func (p *Proxy) closeListeners(key plan.Key) {
	for _, l := range p.listeners[key] {
		l.stop()
		if l.socket != nil {
			_ = l.socket.Close()
		}
		p.sockets--
	}
	delete(p.listeners, key)
}

// poolOf returns the pool of connections to loopback: that of sources outside the cluster, so with externalTrafficPolicy Local
// the endpoints on this node. Source ranges do not apply to NodePorts, nor does the internal traffic policy.
func poolOf(f *plan.Frontend) *plan.Pool {
	if f.Outside != nil {
		return f.Outside
	}
	return &f.Pool
}

// pick chooses the endpoint of a new connection: at random by weight, or by session affinity.
func (p *Proxy) pick(f *plan.Frontend) (netip.AddrPort, bool) {
	pool, now := poolOf(f), p.opt.Now()
	if f.Affinity > 0 {
		if was, ok := p.pins[f.Key]; ok && now.Sub(was.last) < f.Affinity && takes(pool, was.endpoint) {
			p.pins[f.Key] = pin{was.endpoint, now}
			return was.endpoint, true
		}
	}
	total := pool.Total()
	if total <= 0 {
		return netip.AddrPort{}, false
	}
	at := rand.IntN(total)
	for i := range pool.Endpoints {
		e := &pool.Endpoints[i]
		if at -= int(e.Weight); at < 0 {
			if f.Affinity > 0 {
				p.pins[f.Key] = pin{e.Addr, now}
			}
			return e.Addr, true
		}
	}
	return netip.AddrPort{}, false
}

func takes(pool *plan.Pool, endpoint netip.AddrPort) bool {
	return slices.ContainsFunc(pool.Endpoints, func(e plan.Endpoint) bool { return e.Addr == endpoint && e.Weight > 0 })
}

// Stats returns the current counts.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Open, s.Failing = len(p.open), len(p.omitted)
	if s.Serving = len(p.addrs) > 0; s.Serving {
		s.Unsupported = len(p.other)
	}
	for _, list := range p.listeners {
		for _, l := range list {
			switch {
			case l.err != nil:
				s.Failing++
			case l.socket != nil:
				s.Listeners++
				s.FamilyListeners[familyOf(l.at)]++
			}
		}
	}
	return s
}

// FirstFailure describes a listener that cannot be opened, the first by key; "": there is none.
func (p *Proxy) FirstFailure() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text, first := "", plan.Key{}
	for key, list := range p.listeners {
		for _, l := range list {
			if l.err != nil && (text == "" || key.Compare(first) < 0) {
				text, first = fmt.Sprintf("NodePort %d of %s: %s", key.Port, p.frontends[key].Owner, l.err), key
			}
		}
	}
	return text
}
