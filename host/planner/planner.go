// Package planner computes the plan of a changing cluster from cluster state, Service rules and policy decisions. Its cost
// depends on the change, not on the size of the cluster.
//
// It is pure: no I/O, no clock, no goroutine. The same input returns the same plan, byte for byte.
package planner

import (
	"container/heap"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Settings is what a plan depends on besides the cluster and the policies.
type Settings struct {
	Node           string // this node's name
	MasqueradeAll  bool
	MasqueradeMark uint32
	PodSources     []netip.Prefix
	PodInterfaces  []string
	// PodsOfNode takes the Node's spec.podCIDRs for PodSources.
	PodsOfNode bool
	// Primary is this node's address in its family, where the Node's first one is not to be it.
	Primary netip.Addr
	// NodePortPrefixes select the node's addresses that NodePorts answer on. Nil: the primary one of each family. A
	// family that no prefix is of has all its addresses.
	NodePortPrefixes []netip.Prefix
	// LocalAddrs are the addresses on this node's links.
	LocalAddrs []netip.Addr
	Policies   *policy.Set
}

// Planner keeps the plan of a changing cluster. Its cost is that of the change: only the Services that a change
// touches, or whose wake time has passed, are resolved, decided and built again. It has no clock.
type Planner struct {
	settings Settings
	rules    rules
	facts    service.NodeInfo
	cluster  *model.Snapshot
	chains   *policy.Evaluator
	builder  *builder
	zones    []abi.Zone
	partial  bool // zones are unknown, as not all Nodes of the cluster are there
	services map[model.Name]*planned
	dirty    map[model.Name]bool // Services that have changed themselves
	waits    map[model.Name]bool // others that are to be looked at: their time has come, or what all share has changed
	late     []model.Name        // those, the longest due first; what does not wait any more does not count
	turn     int                 // how many of them a limited step takes
	stale    bool                // facts, rules, global and zones are to be worked out again
	wakes    wakes
	warnings []string // as of the last refresh
	fresh    []string // of those, what has not been said
	planned  bool     // Plan has been through once
	account  account
	scratch  []*service.Port // of the Service that is being planned
}

// planned is what is remembered of a Service in the plan.
type planned struct {
	decided *kept  // of Services with a policy: what was decided last
	err     error  // of binding the policy, or of its chain
	told    string // of err, what is in a Step already
	wake    int64  // Unix milliseconds, 0: only on a change
	reset   map[netip.AddrPort]int64
	serving map[udpPort][]netip.AddrPort
	ports   []model.PortName
	sum     summary
}

// Result is what Planner.Plan came to.
type Result struct {
	Delta         *plan.Delta
	Resets        []plan.Reset
	StaleUDPFlows []plan.StaleUDPFlows // UDP flows to look at, when the plan is in the data plane
	RequeueAt     time.Time            // call Plan again then, at the latest; zero: only on a change
	Errors        []error              // of policies, each once while it lasts: *ServiceError
	// Warnings are about what the plan has to do without, each once while it lasts.
	Warnings []string
	// NewConflicts are the frontends among them that a Service wants and another one has.
	NewConflicts []plan.Degradation
	// Planned is how many Services were looked at, Left how many are to be looked at in the next step, at once.
	Planned, Remaining int
	// HealthChecks are the Services whose health check port has something new to say.
	HealthChecks []HealthCheck
	NodeStatus   NodeStatus
	Totals       Totals
	Triggers     []Trigger // of the changes that came in since the last step
}

// New makes a planner of an empty cluster.
func New(s Settings, plugins func(policy.Step) (policy.Plugin, error)) *Planner {
	p := &Planner{
		cluster:  model.NewSnapshot(),
		chains:   policy.NewEvaluator(plugins),
		builder:  newBuilder(),
		services: map[model.Name]*planned{},
		dirty:    map[model.Name]bool{},
		waits:    map[model.Name]bool{},
		turn:     firstTurn,
		account:  account{policies: map[string]*PolicyTotals{}, fallbacks: map[string]*PluginFallback{}},
	}
	p.Configure(s)
	return p
}

// Configure takes new settings in; the next Plan follows them.
func (p *Planner) Configure(s Settings) {
	if s.Policies == nil {
		s.Policies = &policy.Set{}
	}
	p.settings, p.stale = s, true
	p.touchAll()
}

// SetLocalAddrs says which addresses the node's links have now.
func (p *Planner) SetLocalAddrs(addrs []netip.Addr) { p.settings.LocalAddrs, p.stale = addrs, true }

// Apply takes changes of the cluster in.
func (p *Planner) Apply(changes []model.Change) {
	for _, c := range changes {
		p.trigger(&c)
		for _, name := range p.cluster.Apply(c) {
			p.dirty[name] = true
		}
		p.stale = p.stale || c.Kind == model.NodeKind || c.Kind == model.NodesKind || c.Kind == model.ServiceCIDRKind
	}
}

// Replace takes a whole cluster in place of what was there. The planner owns it from then on.
func (p *Planner) Replace(cluster *model.Snapshot) {
	for name := range p.cluster.Services {
		p.dirty[name] = true
	}
	p.cluster, p.stale = cluster, true
	for name := range p.cluster.Services {
		p.dirty[name] = true
	}
}

// PluginsReloaded says that plugins have changed: the Services of policies are looked at again, and those plugins asked
// whose revision is another.
func (p *Planner) PluginsReloaded() {
	for _, name := range p.ServiceNames() {
		if p.services[name].decided != nil {
			p.due(name)
		}
	}
}

// Synced tells whether the cluster's initial state is complete; before, there is no plan.
func (p *Planner) Synced() bool { return p.cluster.Synced }

// Current is the present plan; it belongs to the planner.
func (p *Planner) Current() *plan.Plan { return p.builder.Plan() }

// NodeAddrs are this node's own addresses, as of the last Plan.
func (p *Planner) NodeAddrs() plan.NodeAddrs { return p.rules.NodeAddrs }

// Conflicts are the frontends that more than one Service wants.
func (p *Planner) Conflicts() []plan.Degradation { return p.builder.Conflicts() }

// PluginCalls counts the plugin calls so far.
func (p *Planner) PluginCalls() uint64 { return p.chains.PluginCalls() }

// Save gives what must survive a restart, for Restore.
func (p *Planner) Save() ([]byte, error) { return p.chains.Save() }

// Restore takes in what Save gave, before the first Plan. After an error nothing is restored, and every endpoint
// counts as first seen now.
func (p *Planner) Restore(text []byte) error { return p.chains.Restore(text) }

// DeferWhen keeps steps short. Plan asks no more plugins from the moment that later says so: what is put off holds its last
// good decision, or the default rules. And of Services that have not changed themselves, but are to be looked at
// because of what all share, a step takes only some. Step.Wake is at once when anything is left. Nil: no limit.
func (p *Planner) DeferWhen(later func() bool) { p.chains.ShouldDefer = later }

// Plan brings the plan up to date. An error of a policy keeps the last good or the default decision in force.
func (p *Planner) Plan(now time.Time) Result {
	if !p.cluster.Synced {
		return Result{Delta: &plan.Delta{}}
	}
	if p.stale {
		p.refresh()
		p.account.own = p.told()
	}
	nowMS := now.UnixMilli()
	for len(p.wakes) > 0 && p.wakes[0].at <= nowMS {
		w := heap.Pop(&p.wakes).(wake)
		if s := p.services[w.name]; s != nil && s.wake == w.at {
			s.wake = 0
			p.due(w.name)
		}
	}
	if !p.planned {
		p.planned = true
		p.chains.Prune(func(port model.PortName) bool { return p.cluster.Services[port.Service] != nil })
	}
	step := Result{Warnings: p.fresh}
	p.fresh = nil
	changed := p.order()
	for _, name := range changed {
		p.one(name, now, &step)
	}
	step.Planned = len(changed)
	for _, name := range changed {
		delete(p.waits, name)
	}
	p.onTime(now, &step)
	if len(p.dirty) > 0 {
		p.dirty = map[model.Name]bool{} // not clear: that costs as much as the map was ever large
	}
	step.Delta = p.builder.Take()
	step.NewConflicts = p.builder.Contested()
	for _, d := range step.NewConflicts {
		step.Warnings = append(step.Warnings, "Service "+d.String())
	}
	p.finish(&step)
	for len(p.wakes) > 0 { // drop what was overtaken
		w := p.wakes[0]
		if s := p.services[w.name]; s != nil && s.wake == w.at {
			step.RequeueAt = time.UnixMilli(w.at)
			break
		}
		heap.Pop(&p.wakes)
	}
	if step.Remaining > 0 {
		step.RequeueAt = now
	}
	return step
}

// Of Services that have not changed themselves a limited step takes as many as take about stepTime to plan and to
// program: for so long a change that comes meanwhile waits.
const (
	firstTurn = 128
	leastTurn = 8
	mostTurn  = 2048
	stepTime  = 20 * time.Millisecond
)

// AdaptBatch is told how long the last step took, planned and programmed, when it left some Services for the next.
func (p *Planner) AdaptBatch(took time.Duration) {
	switch {
	case took > 2*stepTime:
		p.turn = max(p.turn/2, leastTurn)
	case took < stepTime/2:
		p.turn = min(p.turn*2, mostTurn)
	}
}

// due has a Service looked at that has not changed itself.
func (p *Planner) due(name model.Name) {
	if !p.waits[name] && !p.dirty[name] {
		p.waits[name], p.late = true, append(p.late, name)
	}
}

// onTime plans the Services that have not changed themselves, the longest due first, and leaves the rest for the next
// Plan when the limit is reached.
func (p *Planner) onTime(now time.Time, step *Result) {
	took := 0
	for i, name := range p.late {
		if !p.waits[name] {
			continue // it has changed since, and was planned
		}
		if later := p.chains.ShouldDefer; later != nil && (took == p.turn || later()) {
			p.late = p.late[i:]
			step.Remaining = len(p.waits)
			return
		}
		p.one(name, now, step)
		delete(p.waits, name)
		took++
		step.Planned++
	}
	if p.late != nil {
		p.late, p.waits = nil, map[model.Name]bool{}
	}
}

// order gives the Services that have changed, by name, those without a policy first: they wait for nobody's plugin.
func (p *Planner) order() []model.Name {
	var plain, decided []model.Name
	for _, name := range slices.SortedFunc(maps.Keys(p.dirty), model.Name.Compare) {
		if svc := p.cluster.Services[name]; svc != nil {
			if pol, _ := p.settings.Policies.For(svc); pol != nil {
				decided = append(decided, name)
				continue
			}
		}
		plain = append(plain, name)
	}
	return append(plain, decided...)
}

// one plans a Service anew.
func (p *Planner) one(name model.Name, now time.Time, step *Result) {
	svc, s := p.cluster.Services[name], p.services[name]
	if svc == nil {
		if s != nil {
			for _, port := range s.ports {
				p.chains.Delete(port)
			}
			gone := summary{health: HealthCheck{Service: s.sum.health.Service}}
			p.account.note(&s.sum, &gone, step)
			delete(p.services, name)
		}
		p.builder.Set(name, 0, nil)
		return
	}
	if s == nil {
		s = &planned{}
		p.services[name] = s
	}
	decided, wakeAt, err := p.decide(svc, s, now)
	// The text of a chain's error changes while it lasts (how long a plugin is suspended for): it is told once all the same.
	what := "chain"
	if _, unbound := p.settings.Policies.For(svc); unbound != nil {
		what = unbound.Error()
	}
	switch {
	case err == nil:
		s.told = ""
	case s.told != what && !errors.Is(err, policy.ErrPending):
		s.told, step.Errors = what, append(step.Errors, &ServiceError{name, err})
	}
	s.err, s.decided = err, nil
	if pol, _ := p.settings.Policies.For(svc); pol != nil {
		s.decided = keep(decided)
	}
	sum := summarize(svc, decided, err != nil && !errors.Is(err, policy.ErrPending))
	if sum.health.Port == 0 {
		sum.health.Service = s.sum.health.Service // of the port that there was
	}
	p.account.note(&s.sum, &sum, step)
	s.sum = sum
	var want []*plan.Frontend
	for i := range decided {
		want = append(want, p.rules.frontends(svc, &decided[i])...)
	}
	p.builder.Set(name, svc.Created, want)
	s.stale(decided, want, step)
	wakeAt = earlier(wakeAt, s.resets(want, now.UnixMilli(), step))
	if wakeAt != s.wake && wakeAt != 0 {
		heap.Push(&p.wakes, wake{wakeAt, name})
	}
	s.wake = wakeAt
	if len(p.wakes) > 64+2*len(p.services) { // mostly overtaken ones
		p.wakes = slices.DeleteFunc(p.wakes, func(w wake) bool { s := p.services[w.name]; return s == nil || s.wake != w.at })
		heap.Init(&p.wakes)
	}
}

// decide resolves and decides all ports of a Service in all its families.
func (p *Planner) decide(svc *model.Service, s *planned, now time.Time) ([]PortDecision, int64, error) {
	pol, err := p.settings.Policies.For(svc)
	var out []PortDecision
	used := 0
	fresh := func() *service.Port {
		if used++; used > len(p.scratch) {
			p.scratch = append(p.scratch, &service.Port{})
		}
		return p.scratch[used-1]
	}
	var wakeAt int64
	var ports []model.PortName
	for i := range svc.Ports {
		for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
			if !hasFamily(svc, f) {
				continue
			}
			port := service.SelectEndpointsInto(fresh(), svc, &svc.Ports[i], f, p.cluster.Slices[svc.Name], p.facts)
			d := PortDecision{Port: port}
			in := policy.Input{Service: svc, Port: port, Node: p.facts.Node, Zone: p.facts.Zone, Zones: p.zones,
				NodesUnknown: p.partial}
			ask := func(pool uint8) policy.Decision {
				in.Pool = pool
				got, at := p.chains.Decide(pol, &in, now)
				if !at.IsZero() {
					wakeAt = earlier(wakeAt, at.UnixMilli())
				}
				if got.Err != nil && err == nil {
					err = got.Err
				}
				return got
			}
			if port.UsesCluster {
				d.Cluster = ask(abi.PoolCluster)
			}
			if port.UsesLocal {
				d.Local = ask(abi.PoolLocal)
			}
			out = append(out, d)
			if len(ports) == 0 || ports[len(ports)-1] != port.Name {
				ports = append(ports, port.Name)
			}
		}
	}
	for _, old := range s.ports {
		if !slices.Contains(ports, old) {
			p.chains.Delete(old)
		}
	}
	s.ports = ports
	return out, wakeAt, err
}

// resets collects the endpoints whose deadline has passed, each once, and gives the next deadline.
func (s *planned) resets(frontends []*plan.Frontend, nowMS int64, step *Result) (next int64) {
	var done map[netip.AddrPort]int64
	for _, f := range frontends {
		pools := []*plan.Pool{&f.Pool}
		if f.Outside != nil {
			pools = append(pools, f.Outside)
		}
		for _, pool := range pools {
			for _, m := range pool.Endpoints {
				switch {
				case m.Deadline == 0:
				case m.Deadline > nowMS:
					next = earlier(next, m.Deadline)
				default:
					if s.reset[m.Addr] != m.Deadline {
						step.Resets = append(step.Resets, plan.Reset{Frontend: f.Key, Endpoint: m.Addr})
					}
					if done == nil {
						done = map[netip.AddrPort]int64{}
					}
					done[m.Addr] = m.Deadline
				}
			}
		}
	}
	s.reset = done
	return next
}

// ServiceNames are the names of all Services in the plan, sorted.
func (p *Planner) ServiceNames() []model.Name {
	return slices.SortedFunc(maps.Keys(p.services), model.Name.Compare)
}

// touchAll has all Services looked at: before the first plan at once, then in turns.
func (p *Planner) touchAll() {
	if !p.planned {
		for name := range p.cluster.Services {
			p.dirty[name] = true
		}
		return
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.cluster.Services), model.Name.Compare) {
		p.due(name)
	}
}

func hasFamily(svc *model.Service, f model.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f })
}

// earlier is the earlier of two times of which 0 means none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
