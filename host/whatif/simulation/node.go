package simulation

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// state is what a node has decided about a Service, from a time on.
type state struct {
	at      time.Duration
	weights [][]uint16 // by pool, then parallel to the port's endpoints; nil: the port does not have the pool
	changes int        // endpoints of pools with another weight than in the state before
	calls   uint64     // of plugins
}

// trajectory is the states of a node over time.
type trajectory struct {
	states []state
	err    error // the first failure of the policy
	policy *policy.Policy
}

// nodeRun decides about a Service on one node over time, like the planner of that node. Its evaluator is reused.
type nodeRun struct {
	sim       *Simulation
	config    *Config
	evaluator *policy.Evaluator
	rules     *eligibility.EndpointRules
	ports     []portOnNode // parallel to those of the Service; reused

	svc     *serviceRun
	class   *class
	set     *policy.Set
	signals *signals // nil: the policy needs none
	out     trajectory
}

// run returns the trajectory of a class. run is the number of the configuration.
func (r *nodeRun) run(svc *serviceRun, c *class, run int) trajectory {
	r.svc, r.class, r.set, r.out = svc, c, c.sets[run], trajectory{}
	needs := uint32(0)
	for i := range svc.service.Ports {
		p, _ := r.set.For(svc.service, svc.service.Ports[i].Name, "")
		r.out.policy = cmp.Or(r.out.policy, p)
		needs |= r.needs(p)
	}
	r.signals, r.evaluator.Signals = nil, nil
	if needs&(abi.NeedOutcomes|abi.NeedConnections) != 0 {
		r.signals = newSignals(r.sim.world, r.sim.lifetime)
		r.evaluator.Signals = r.signals
	}
	times := r.times(needs)
	requeue := r.decide(-settle)
	times.skip(-settle)
	read := never
	if needs&abi.NeedOutcomes != 0 {
		read = -countBefore
	}
	for {
		next := min(requeue, read, times.next())
		if next > r.sim.world.end || next == never {
			break
		}
		due := next == requeue
		if next == times.next() {
			due = true
			times.skip(next)
		}
		if next == read {
			due = r.signals.read(next) || due
			read += r.config.Period
		}
		if due {
			if isLost(c.fate, next) { // it goes on when it is back
				if requeue = never; r.signals != nil {
					r.signals.begin(next)
					r.signals.end()
				}
				continue
			}
			requeue = max(r.decide(next), next+time.Millisecond)
		}
	}
	r.forget()
	return r.out
}

// never is later than any time.
const never time.Duration = 1 << 62

// timeList are times at which something changes, in order.
type timeList []time.Duration

func (l timeList) next() time.Duration {
	if len(l) == 0 {
		return never
	}
	return l[0]
}

// skip removes the times up to t.
func (l *timeList) skip(t time.Duration) {
	for l.next() <= t {
		*l = (*l)[1:]
	}
}

// times returns when the input changes.
func (r *nodeRun) times(needs uint32) (out timeList) {
	out = append(out, r.class.fate...)
	for _, v := range r.svc.versions {
		out = append(out, v.at)
	}
	if needs&abi.NeedNodes != 0 {
		for _, v := range r.sim.world.nodes {
			out = append(out, v.at)
		}
	}
	slices.Sort(out)
	return out
}

// needs returns what the plugins of a policy need, and NeedOutcomes for its panic hold.
func (r *nodeRun) needs(p *policy.Policy) uint32 {
	if p == nil {
		return 0
	}
	needs, _ := r.evaluator.Needs(p)
	if p.Panic.Below > 0 {
		needs |= abi.NeedOutcomes
	}
	return needs
}

// decide decides about all ports at t, and returns when to decide again.
func (r *nodeRun) decide(t time.Duration) (requeue time.Duration) {
	requeue = never
	again := func(at time.Time) {
		if !at.IsZero() {
			requeue = min(requeue, at.Sub(r.sim.world.start))
		}
	}
	now, node := r.sim.world.start.Add(t), r.class.node
	calls := r.evaluator.PluginCalls()
	policies, _ := r.evaluator.Choose(r.set, r.svc.service, nil)
	nodes := &r.sim.world.nodes[at(r.sim.world.nodes, t, func(v nodesVersion) time.Duration { return v.at })]
	v := r.svc.versionAt(t)
	if r.signals != nil {
		r.signals.begin(t)
		defer r.signals.end()
	}
	next := state{at: t, weights: make([][]uint16, 2*len(r.svc.ports))}
	for i := range r.svc.ports {
		p := &r.svc.ports[i]
		of := policies[p.index]
		port := r.portOf(i, v, of)
		_, until := r.evaluator.Hold(of, port, now)
		again(until)
		in := policy.Input{
			Service: r.svc.service, Port: port, Node: node.Name, Zone: node.Zone, Zones: nodes.zones, NodesUnknown: r.sim.world.cluster.NodesPartial,
			Pods:   policy.Pods{All: r.sim.world.pods, Pending: r.sim.world.cluster.PodsOf(r.svc.service.Name) == model.PodsPending},
			Labels: policy.LabelsOf(r.sim.world.cluster, r.svc.service.Name),
		}
		if !in.NodesUnknown {
			in.NodeIndex, in.NodeCount = nodes.index(node.Name), uint32(len(nodes.ready))
		}
		for pool, uses := range [...]bool{abi.PoolCluster: port.UsesCluster, abi.PoolLocal: port.UsesLocal} {
			if !uses {
				continue
			}
			in.Pool = uint8(pool)
			d, at := r.evaluator.DecideNow(of, &in, now)
			again(at)
			if d.Err != nil && r.out.err == nil && !errors.Is(d.Err, policy.ErrPending) {
				r.out.err = d.Err
			}
			next.weights[2*i+pool] = p.spread(port, d.Weights, pool == abi.PoolLocal)
			if r.signals != nil {
				r.count(p, port, &d, pool, t)
			}
		}
	}
	next.calls = r.evaluator.PluginCalls() - calls
	r.add(next)
	return requeue
}

// portOnNode is a port as a node sees it.
type portOnNode struct {
	eligibility.Port
	of      *serviceRun // nil: no other node sees the same
	version int
	zone    string
}

// portOf returns port i of the Service in a version as the node sees it. Nodes of a zone that no endpoint is on, and that no hint
// names, see the same; the panic hold of a policy changes it.
func (r *nodeRun) portOf(i, version int, of *policy.Policy) *eligibility.Port {
	for len(r.ports) <= i {
		r.ports = append(r.ports, portOnNode{})
	}
	out, node, p := &r.ports[i], r.class.node, &r.svc.ports[i]
	own := r.svc.hosts[node.Name] || of != nil && of.Panic.Below > 0
	if !own && out.of == r.svc && out.version == version && out.zone == node.Zone {
		return &out.Port
	}
	if out.of, out.version, out.zone = r.svc, version, node.Zone; own {
		out.of = nil
	}
	return eligibility.SelectEndpointsInto(&out.Port, r.svc.service, p.spec, p.family, r.svc.versions[version].slices,
		eligibility.NodeInfo{Node: node.Name, Zone: node.Zone, MaxEndpoints: r.config.Settings.ServiceLimits.Endpoints, Endpoints: r.rules})
}

// spread returns weights by endpoint of the port at any time.
func (p *servicePort) spread(port *eligibility.Port, weights []uint16, local bool) []uint16 {
	out := make([]uint16, len(p.endpoints))
	j := 0
	for i := range port.Endpoints {
		e := &port.Endpoints[i]
		for p.endpoints[j].addr != e.Addr {
			j++
		}
		if !local || e.Local {
			out[j] = weights[i]
		}
	}
	return out
}

// count sets the rates of the connections to the endpoints that the kernel has in a pool.
func (r *nodeRun) count(p *servicePort, port *eligibility.Port, d *policy.Decision, pool int, t time.Duration) {
	rate, sum := 0.0, 0
	for _, w := range d.Weights {
		sum += int(w)
	}
	if pool == p.loadPool && sum > 0 {
		rate = r.sim.demand.rate(r.class.node, p.name, p.spec.Port) / float64(sum)
	}
	for i := range port.Endpoints {
		e := &port.Endpoints[i]
		draining := e.Terminating && !e.Ready || d.KeepDraining != nil && d.KeepDraining[i]
		if (d.Weights[i] > 0 || draining) && (pool == abi.PoolCluster || e.Local) {
			r.signals.set(model.EndpointKey{Addr: e.Addr, Protocol: p.name.Protocol}, rate*float64(d.Weights[i]), t)
		}
	}
}

// add adds a state to the trajectory, unless nothing has happened.
func (r *nodeRun) add(next state) {
	n := len(r.out.states)
	if n > 0 {
		before := r.out.states[n-1].weights
		for i := range next.weights {
			for j := range max(len(next.weights[i]), len(before[i])) {
				if weightAt(next.weights[i], j) != weightAt(before[i], j) {
					next.changes++
				}
			}
		}
		if next.changes == 0 {
			if next.calls == 0 {
				return
			}
			next.weights = before
		}
	}
	r.out.states = append(r.out.states, next)
}

func weightAt(weights []uint16, i int) uint16 {
	if weights == nil {
		return 0
	}
	return weights[i]
}

// forget makes the evaluator forget the Service.
func (r *nodeRun) forget() {
	for i := range r.svc.ports {
		r.evaluator.Delete(r.svc.ports[i].name)
	}
	r.evaluator.DeleteSettings(r.svc.service.Name)
	r.evaluator.DeleteChoice(r.svc.service.Name)
}
