package simulation

import (
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// decide decides about the Service's own endpoints at t. It reports whether others are due therefore.
func (r *nodeRun) decide(s *serviceOnNode, t time.Duration) (again bool) {
	s.requeue = never
	requeue := func(at time.Time) {
		if !at.IsZero() {
			s.requeue = min(s.requeue, max(at.Sub(r.sim.world.start), t+time.Millisecond))
		}
	}
	svc, now := s.svc, r.sim.world.start.Add(t)
	calls := r.evaluator.PluginCalls()
	policies, _ := r.evaluator.Choose(r.set, svc.service, nil)
	var record *planner.Record
	if svc.backend {
		record = planner.NewRecord(svc.service, svc.local)
	}
	for i := range svc.ports {
		p, d := &svc.ports[i], &s.decisions[i]
		if !p.asks() {
			continue
		}
		of := policies[p.index]
		port := r.portOf(s, i, svc.versionAt(t), of)
		_, until := r.evaluator.Hold(of, port, now)
		requeue(until)
		*d = policy.PortDecision{Port: port}
		in := r.input(svc, port, t)
		for pool, decision := range poolsOf(d) {
			var at time.Time
			in.Pool = uint8(pool)
			*decision, at = r.evaluator.DecideNow(of, &in, now)
			requeue(at)
			if err := decision.Err; err != nil && s.out.err == nil && !errors.Is(err, policy.ErrPending) {
				s.out.err = err
			}
		}
		if record != nil {
			record.Add(d, of)
		}
	}
	s.calls += r.evaluator.PluginCalls() - calls
	return r.setRecord(s, record)
}

// setRecord replaces what has been decided about a Service. It reports whether others are due therefore.
func (r *nodeRun) setRecord(s *serviceOnNode, k *planner.Record) (again bool) {
	if k == nil || k.Equal(s.record) {
		return false
	}
	s.record = k
	for _, parent := range r.sim.routes.parents[s.svc.service.Name] {
		if i, ok := r.unit.index[parent]; ok && &r.services[i] != s {
			r.services[i].due, again = true, true
		}
	}
	return again
}

// input returns the input of policies at t, without a pool.
func (r *nodeRun) input(svc *serviceRun, port *eligibility.Port, t time.Duration) policy.Input {
	w, node := r.sim.world, r.class.node
	nodes := &w.nodes[at(w.nodes, t, func(v nodesVersion) time.Duration { return v.at })]
	in := policy.Input{
		Service: svc.service, Port: port, Node: node.Name, Zone: node.Zone, Zones: nodes.zones, NodesUnknown: w.cluster.NodesPartial,
		Pods:   policy.Pods{All: w.pods, Pending: w.cluster.PodsOf(svc.service.Name) == model.PodsPending},
		Labels: policy.LabelsOf(w.cluster, svc.service.Name),
	}
	if !in.NodesUnknown {
		in.NodeIndex, in.NodeCount = nodes.index(node.Name), uint32(len(nodes.ready))
	}
	return in
}

// poolsOf returns the pools that a port has, as abi.Pool…, with what is decided about them.
func poolsOf(d *policy.PortDecision) iter.Seq2[int, *policy.Decision] {
	return func(yield func(int, *policy.Decision) bool) {
		if d.Port.UsesCluster && !yield(abi.PoolCluster, &d.Cluster) {
			return
		}
		if d.Port.UsesLocal {
			yield(abi.PoolLocal, &d.Local)
		}
	}
}

// finish adds the state of a Service at t, when all that its routes need has been decided.
func (r *nodeRun) finish(s *serviceOnNode, t time.Duration) {
	next := state{at: t, weights: make([][]uint16, 2*len(s.svc.ports)), calls: s.calls}
	s.calls, s.rates = 0, s.rates[:0]
	for i := range s.svc.ports {
		p, d := &s.svc.ports[i], &s.decisions[i]
		if p.routes != nil {
			split := planner.NewSplit(s.svc.service, p.spec, p.family, p.routeAt(t), r.config.Settings.ServiceLimits.Endpoints, r.recordOf)
			if d = &split.Decision; p.loadPool >= 0 {
				next.hold(len(s.svc.ports), i, split, p.loadPool)
			}
		}
		for pool, decision := range poolsOf(d) {
			weights := p.spread(d.Port, decision.Weights, pool == abi.PoolLocal)
			if p.routes != nil {
				weights = append(weights, decision.Refused)
			}
			next.weights[2*i+pool] = weights
			if r.signals != nil {
				r.count(s, p, d.Port, decision, pool)
			}
		}
	}
	s.out.add(next)
}

// recordOf returns what has been decided about a Service, nil if there is no such Service.
func (r *nodeRun) recordOf(name model.Name) (k *planner.Record, known bool) {
	if i, ok := r.unit.index[name]; ok {
		return r.services[i].record, true
	}
	return nil, true
}

// hold sets the shares of the backends of port number i, of n.
func (s *state) hold(n, i int, split *planner.Split, pool int) {
	if s.held == nil {
		s.held = make([][]float64, n)
	}
	for j := range split.Parts {
		s.held[i] = append(s.held[i], split.Parts[j].Pools[pool].Held)
	}
}

// portOnNode is a port as a node sees it.
type portOnNode struct {
	eligibility.Port
	of      *serviceRun // nil: no other node sees the same
	version int
	zone    string
}

// portOf returns port i of a Service in a version as the node sees it. Nodes of a zone that no endpoint is on, and that no hint
// names, see the same; the panic hold of a policy changes it.
func (r *nodeRun) portOf(s *serviceOnNode, i, version int, of *policy.Policy) *eligibility.Port {
	for len(s.ports) <= i {
		s.ports = append(s.ports, portOnNode{})
	}
	svc, out, node := s.svc, &s.ports[i], r.class.node
	p := &svc.ports[i]
	own := svc.hosts[node.Name] || of != nil && of.Panic.Below > 0
	if !own && out.of == svc && out.version == version && out.zone == node.Zone {
		return &out.Port
	}
	if out.of, out.version, out.zone = svc, version, node.Zone; own {
		out.of = nil
	}
	eligibility.SelectEndpointsInto(&out.Port, svc.service, p.spec, p.family, svc.versions[version].slices,
		eligibility.NodeInfo{Node: node.Name, Zone: node.Zone, MaxEndpoints: r.config.Settings.ServiceLimits.Endpoints, Endpoints: r.rules})
	if svc.backend {
		out.Use(true, svc.local)
	}
	return &out.Port
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

// count adds the rates of the connections to the endpoints that the kernel has in a pool.
func (r *nodeRun) count(s *serviceOnNode, p *servicePort, port *eligibility.Port, d *policy.Decision, pool int) {
	rate, sum := 0.0, int(d.Refused)
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
			s.rates = append(s.rates, endpointRate{model.EndpointKey{Addr: e.Addr, Protocol: p.name.Protocol}, rate * float64(d.Weights[i])})
		}
	}
}

// add adds a state to the trajectory, unless nothing has happened.
func (tr *trajectory) add(next state) {
	if n := len(tr.states); n > 0 {
		before := &tr.states[n-1]
		for i := range next.weights {
			for j := range max(len(next.weights[i]), len(before.weights[i])) {
				if weightAt(next.weights[i], j) != weightAt(before.weights[i], j) {
					next.changes++
				}
			}
		}
		if next.changes == 0 {
			if next.calls == 0 && slices.EqualFunc(next.held, before.held, slices.Equal) {
				return
			}
			next.weights = before.weights
		}
	}
	tr.states = append(tr.states, next)
}

func weightAt(weights []uint16, i int) uint16 {
	if weights == nil {
		return 0
	}
	return weights[i]
}

// forget makes the evaluator forget the Services.
func (r *nodeRun) forget() {
	for _, svc := range r.unit.services {
		for i := range svc.ports {
			r.evaluator.Delete(svc.ports[i].name)
		}
		r.evaluator.DeleteSettings(svc.service.Name)
		r.evaluator.DeleteChoice(svc.service.Name)
	}
}
