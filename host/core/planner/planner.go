// Package planner computes the plan of a changing cluster from cluster state, Service rules and policy decisions. Its cost
// depends on the change, not on the size of the cluster.
//
// It is pure: no I/O, no clock, no goroutine. The same input returns the same plan, byte for byte.
package planner

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Planner maintains the plan of a changing cluster. Plan recomputes only the Services that a change affects or whose requeue
// time has passed. A Planner is not safe for concurrent use.
//
// Between two Plans, the plan of claims is what the last round of each Service in services has set, and what counters, outcomes,
// pods, sheds and udpFlows have of a Service is what its serviceState says. Each part has its own job and invariant, and sees of
// the others what it embeds.
type Planner struct {
	world
	node
	guards
	rounds
	udpFlows
	sheds
	connections
	pace
	running
	answers    []*policy.Call // whose chains are to be continued
	values     valueIndex
	hasPlanned bool
	apiServer  bool // the API server's endpoints have changed
	nodeStatus NodeStatus
	zoneWarned bool // a Result has warned about hints that this node cannot follow
	triggers   []Trigger
}

// New returns a planner of an empty cluster. plugins returns the current revision of a plugin by name, see policy.NewEvaluator.
func New(s Settings, plugins func(string) (policy.Plugin, error)) *Planner {
	p := &Planner{
		world: world{
			roster:  roster{services: map[model.Name]*serviceState{}},
			cluster: model.NewSnapshot(), routes: newRoutes(nil), evaluator: policy.NewEvaluator(plugins), claims: claims.New(), counters: tally.NewCounters(),
		},
		pace:   pace{stepCost: maxStepCost},
		values: valueIndex{},
	}
	p.node = node{world: &p.world, foreign: newForeign()}
	p.guards.world = &p.world
	p.rounds = rounds{node: &p.node, guards: &p.guards}
	p.udpFlows = udpFlows{world: &p.world, keepsUDP: map[model.Name]bool{}}
	p.sheds.table = p.claims
	p.connections = connections{world: &p.world, outcomes: tally.NewOutcomes()}
	p.Configure(s)
	return p
}

// Configure replaces the settings from the next Plan on.
func (p *Planner) Configure(s Settings) {
	if s.Policies == nil {
		s.Policies = &policy.Set{}
	}
	p.settings, p.nodeDirty, p.guards.dirty = s, true, true
	p.evaluator.KeepCounters(s.Policies)
	p.queue.Begin(true)
}

// SetPolicies replaces the policies from the next Plan on. Only the Services for which objects have changed are planned again.
func (p *Planner) SetPolicies(set *policy.Set, changed []*policy.Object) {
	set.Follow(p.settings.Policies)
	p.settings.Policies = set
	p.evaluator.KeepCountersOf(changed, set)
	for _, o := range changed {
		p.guards.dirty = p.guards.dirty || o.Policy.Guard.FailedPercent > 0
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

// Apply applies changes to the cluster state. The next Plan takes them into account.
func (p *Planner) Apply(changes []model.Change) {
	for _, c := range changes {
		p.trigger(&c)
		for _, name := range p.values.of(&c, p.cluster) {
			p.markChanged(name)
		}
		if c.Kind == model.NodeKind {
			p.foreign.change(p.cluster.Nodes[c.Name.Name], c.Node)
		}
		p.applyRoute(&c)
		for _, name := range p.clusterIPs.change(p.cluster, &c) {
			p.markChanged(name)
		}
		for _, name := range p.cluster.Apply(c) {
			p.markChanged(name)
		}
		if p.seesLoad(&c) {
			p.markChanged(c.Name)
		}
		if c.Kind == model.NodeLabelsKind || c.Kind == model.NamespaceLabelsKind || c.Kind == model.LoadReadKind {
			// Others have been read than before, and plugins may have waited for them.
			for _, name := range p.readers(c.Kind) {
				p.markChanged(name)
			}
		}
		if c.Kind == model.NodeKind && c.Name.Name == p.settings.Node {
			p.rememberNode(c.Node)
		}
		p.nodeDirty = p.nodeDirty || c.Kind == model.NodeKind || c.Kind == model.NodesPartialKind || c.Kind == model.ServiceCIDRKind
	}
}

// Replace replaces the cluster state. The planner takes ownership of it.
func (p *Planner) Replace(cluster *model.Snapshot) {
	old := p.cluster
	p.cluster, p.nodeDirty, p.clusterIPs, p.routes = cluster, true, clusterIPs{}, newRoutes(cluster.Routes)
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

// PluginsReloaded requeues every Service that has a policy. Only plugins whose revision has changed are called.
func (p *Planner) PluginsReloaded() {
	p.guards.dirty = true
	p.queue.Begin(false)
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
