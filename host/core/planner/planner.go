// Package planner computes the plan of a changing cluster from cluster state, Service rules and policy decisions. Its cost
// depends on the change, not on the size of the cluster.
//
// It is pure: no I/O, no clock, no goroutine. The same input returns the same plan, byte for byte.
package planner

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Planner maintains the plan of a changing cluster. Plan recomputes only the Services that a change affects or whose requeue
// time has passed. A Planner is not safe for concurrent use.
//
// Between two Plans, the plan of claims is what the last round of each Service in services has set, and what counters, outcomes, pods,
// sheds and keepsUDP have of a Service is what its serviceState says. A Service whose input has changed since has a place in queue, an
// unfinished round with again, or a time in requeues.
type Planner struct {
	settings     Settings
	rules        rules
	nodeInfo     eligibility.NodeInfo
	cluster      *model.Snapshot
	evaluator    *policy.Evaluator
	claims       *claims.Table
	zones        []abi.Zone
	nodesPartial bool // zones is empty because not all Nodes of the cluster have been read
	services     map[model.Name]*serviceState
	newcomers    map[model.Name]*serviceState // those that are not in services, and have to be planned
	queue        queue.Queue
	dueAhead     int             // by how much the cost of due Services is above that of swept ones while both wait
	answers      []*policy.Call  // whose chains are to be continued
	work         work            // of the Plan that waits for answers
	paused       []pausedService // Services whose rounds wait for them
	asking       int             // cost of the turns that have ended so since Result.Calls
	inBatches    bool
	stepCost     int  // how much one Plan does, see AdaptStep
	full         bool // the last Plan has done as much as it may
	postponed    bool // the last Plan did not work on the backlog
	nodeDirty    bool // nodeInfo, rules and zones are out of date
	requeues     requeueHeap
	warnings     []nodeWarning // of the last refresh
	newWarnings  []string      // those of warnings that no Result has reported
	hasPlanned   bool
	warnedOf     ExternalIPs // plus 1: for which a Result has a warning
	counters     tally.Counters
	outcomes     tally.Outcomes
	nodeStatus   NodeStatus
	zoneWarned   bool // a Result has warned about hints that this node cannot follow
	triggers     []Trigger
	sheds        sheds
	guards       []*guard            // sorted by policy
	guardsDirty  bool                // guards is out of date
	guardChanges []GuardChange       // that no Result has reported
	ports        []*eligibility.Port // for reuse
	spare        []*round            // for reuse
	apiServer    bool                // the API server's endpoints have changed
	pods         podIndex
	keepsUDP     map[model.Name]bool // Services with endpoints that do not serve and keep their UDP flows
	// nodePortAddrs are the addresses that served NodePorts when UDP flows through them were last reported.
	nodePortAddrs []netip.Addr
	clusterIPs    clusterIPs
	foreign       foreign

	nodeIndex, nodeCount uint32 // see policy.Input
}

// New returns a planner of an empty cluster. plugins returns the current revision of a plugin by name, see policy.NewEvaluator.
func New(s Settings, plugins func(string) (policy.Plugin, error)) *Planner {
	p := &Planner{
		cluster:   model.NewSnapshot(),
		evaluator: policy.NewEvaluator(plugins),
		claims:    claims.New(),
		services:  map[model.Name]*serviceState{},
		pods:      podIndex{},
		foreign:   newForeign(),
		outcomes:  tally.NewOutcomes(),
		keepsUDP:  map[model.Name]bool{},
		stepCost:  maxStepCost,
		counters:  tally.NewCounters(),
	}
	p.Configure(s)
	return p
}

// Configure replaces the settings from the next Plan on.
func (p *Planner) Configure(s Settings) {
	if s.Policies == nil {
		s.Policies = &policy.Set{}
	}
	p.settings, p.nodeDirty, p.guardsDirty = s, true, true
	p.queue.Begin(true)
}

// SetPolicies replaces the policies from the next Plan on. Only the Services for which objects have changed are planned again.
func (p *Planner) SetPolicies(set *policy.Set, changed []*policy.Object) {
	set.Follow(p.settings.Policies)
	p.settings.Policies = set
	for _, o := range changed {
		p.guardsDirty = p.guardsDirty || o.Policy.Guard.FailedPercent > 0
		if o.Name.Namespace != "" {
			for _, t := range o.Targets {
				if s := p.services[model.Name{Namespace: o.Name.Namespace, Name: t.Service}]; s != nil {
					p.schedule(s, queue.Changed)
				}
			}
			continue
		}
		for name, s := range p.services {
			if svc := p.cluster.Services[name]; svc != nil && o.Selects(svc) {
				p.schedule(s, queue.Changed)
			}
		}
	}
}

// SetCaps sets the capabilities of the backend that programs the plan. The plan fits them at once.
func (p *Planner) SetCaps(c plan.Caps) {
	p.rules.Caps = &c
	p.claims.SetCaps(&c)
	for _, s := range p.services {
		if s.round != nil {
			fit := plan.NewFitter(&c)
			for i, f := range s.round.frontends {
				s.round.frontends[i] = fit.Fit(f)
			}
		}
	}
}

// SetLocalAddrs replaces Settings.LocalAddrs from the next Plan on.
func (p *Planner) SetLocalAddrs(addrs []netip.Addr) { p.setAddrs(&p.settings.LocalAddrs, addrs) }

// SetHosts replaces Settings.Hosts from the next Plan on.
func (p *Planner) SetHosts(addrs []netip.Addr) { p.setAddrs(&p.settings.Hosts, addrs) }

func (p *Planner) setAddrs(setting *[]netip.Addr, addrs []netip.Addr) {
	if !slices.Equal(*setting, addrs) {
		*setting, p.nodeDirty = addrs, true
	}
}

// Apply applies changes to the cluster state. The next Plan takes them into account.
func (p *Planner) Apply(changes []model.Change) {
	for _, c := range changes {
		p.trigger(&c)
		if c.Kind == model.NodeKind {
			p.foreign.change(p.cluster.Nodes[c.Name.Name], c.Node)
		}
		for _, name := range p.clusterIPs.change(p.cluster, &c) {
			p.markChanged(name)
		}
		for _, name := range p.cluster.Apply(c) {
			p.markChanged(name)
		}
		if c.Kind == model.PodKind {
			for _, name := range p.pods[c.Name] {
				p.markChanged(name)
			}
		}
		if c.Kind == model.NodeKind && c.Name.Name == p.settings.Node {
			p.rememberNode(c.Node)
		}
		p.nodeDirty = p.nodeDirty || c.Kind == model.NodeKind || c.Kind == model.NodesPartialKind || c.Kind == model.ServiceCIDRKind
	}
}

// ServiceOf returns the Service that a change of a Service, its EndpointSlices or its Pods' state concerns, zero for other changes.
func (p *Planner) ServiceOf(c *model.Change) model.Name {
	switch {
	case c.Kind == model.SliceKind && c.Slice != nil:
		return c.Slice.Service
	case c.Kind == model.SliceKind:
		if old := p.cluster.Slice(c.Name); old != nil {
			return old.Service
		}
	case c.Kind == model.ServiceKind || c.Kind == model.PodsReadKind:
		return c.Name
	}
	return model.Name{}
}

// Replace replaces the cluster state. The planner takes ownership of it.
func (p *Planner) Replace(cluster *model.Snapshot) {
	old := p.cluster
	p.cluster, p.nodeDirty, p.clusterIPs = cluster, true, clusterIPs{}
	p.rememberNode(cluster.Nodes[p.settings.Node])
	for _, n := range old.Nodes {
		p.foreign.change(n, nil)
	}
	for _, n := range cluster.Nodes {
		p.foreign.change(nil, n)
	}
	for _, all := range []*model.Snapshot{old, cluster} {
		for _, name := range slices.SortedFunc(maps.Keys(all.Services), model.Name.Compare) {
			p.markChanged(name)
		}
	}
}

// apiServerService is the Service whose endpoints are the API servers.
var apiServerService = model.Name{Namespace: "default", Name: "kubernetes"}

// markChanged schedules a Service that has changed.
func (p *Planner) markChanged(name model.Name) {
	p.apiServer = p.apiServer || name == apiServerService
	s := p.services[name]
	if s == nil {
		s = p.newcomer(name)
	}
	p.schedule(s, queue.Changed)
}

// stateOf returns the state of a Service that has a place in the queue.
func (p *Planner) stateOf(name model.Name) *serviceState {
	if s := p.services[name]; s != nil {
		return s
	}
	return p.newcomers[name]
}

// newcomer returns the state of a Service that is not in services.
func (p *Planner) newcomer(name model.Name) *serviceState {
	s := p.newcomers[name]
	if s == nil {
		s = &serviceState{}
		p.queue.Enter(&s.place, name)
		p.addNewcomer(s)
	}
	return s
}

func (p *Planner) addNewcomer(s *serviceState) {
	if p.newcomers == nil {
		p.newcomers = map[model.Name]*serviceState{}
	}
	p.newcomers[s.place.Name] = s
}

func (p *Planner) deleteNewcomer(name model.Name) {
	if delete(p.newcomers, name); len(p.newcomers) == 0 {
		p.newcomers = nil // clear would cost as much as the map's largest size ever
	}
}

// schedule gives a Service a place in the queue for a reason; after an unfinished round of it another one follows.
func (p *Planner) schedule(s *serviceState, of queue.Class) {
	if s.round != nil {
		s.round.again = true
		return
	}
	p.queue.Push(&s.place, of)
}

// PluginsReloaded requeues every Service that has a policy. Only plugins whose revision has changed are called.
func (p *Planner) PluginsReloaded() {
	p.guardsDirty = true
	p.queue.Begin(false)
}

// Synced reports whether the initial cluster state is complete. Until it is, Plan does nothing.
func (p *Planner) Synced() bool { return p.cluster.Synced }

// Current returns the plan as of the last Plan. It is read-only, and the next Plan changes it in place.
func (p *Planner) Current() *plan.Plan { return p.claims.Plan() }

// NodeAddrs returns this node's own addresses as of the last Plan.
func (p *Planner) NodeAddrs() plan.NodeAddrs { return p.rules.NodeAddrs }

// Conflicts returns the frontends that a Service wants and another one has, sorted.
func (p *Planner) Conflicts() []plan.Degradation { return p.claims.Conflicts() }

// PluginCalls returns the number of plugin calls that have been answered so far.
func (p *Planner) PluginCalls() uint64 { return p.evaluator.PluginCalls() }

// UseSignals makes requests to plugins contain what s knows of connections.
func (p *Planner) UseSignals(s policy.Signals) { p.evaluator.Signals = s }

// Save returns the state that must survive a restart, for Restore. epoch is that of the clock of Plan.
func (p *Planner) Save(epoch policy.Epoch) ([]byte, error) { return p.evaluator.Save(epoch) }

// Restore restores what Save returned; call it before the first Plan. The clock of Plan must have the epoch that it returns, see
// policy.Evaluator.Restore. After an error nothing is restored, and every endpoint counts as first seen at the first Plan.
func (p *Planner) Restore(text []byte, fresh policy.Epoch) (epoch policy.Epoch, sameBoot bool, err error) {
	return p.evaluator.Restore(text, fresh)
}

// ServiceNames returns the names of all planned Services, sorted.
func (p *Planner) ServiceNames() []model.Name {
	return slices.SortedFunc(maps.Keys(p.services), model.Name.Compare)
}

// trigger records the trigger time of an EndpointSlice change. Call it before the change is applied.
func (p *Planner) trigger(c *model.Change) {
	if c.Kind != model.SliceKind || c.Slice == nil || c.Slice.Trigger == 0 {
		return // a deletion carries the trigger time of the previous change
	}
	old := p.cluster.Slice(c.Name)
	if old != nil && (old.Trigger == c.Slice.Trigger || old.SameContent(c.Slice)) {
		return
	}
	p.triggers = append(p.triggers, Trigger{c.Slice.Trigger, c.Slice.Family})
}
