package planner

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// rounds evaluates Services: it chooses their endpoints, asks their policies, and builds their frontends.
type rounds struct {
	*node
	guards *guards
	ports  []*eligibility.Port // for reuse
	spare  []*round            // for reuse
}

// begin begins a round.
func (rs *rounds) begin(svc *model.Service) *round {
	var r *round
	if n := len(rs.spare); n > 0 {
		r, rs.spare = rs.spare[n-1], rs.spare[:n-1]
	} else {
		r = &round{}
	}
	rs.warnOfExternalIPs(svc)
	svc = rs.served(svc)
	r.svc, r.addrs = svc, claims.AddrsOf(svc)
	r.routes, r.record = rs.routes.attached(svc), rs.newRecord(svc)
	r.policies, r.choiceErr = rs.evaluator.Choose(rs.settings.Policies, svc, r.policies[:0])
	r.guards, r.instead = rs.guards.of(svc)
	r.counted.All = rs.settings.CountAll || len(r.guards) > 0
	for i, of := range r.policies {
		if of == nil || i > 0 && of == r.policies[i-1] {
			continue
		}
		r.decisions = &decisionCache{}
		enforced, shadow := rs.evaluator.Needs(of)
		if of.Panic.Below > 0 {
			enforced |= abi.NeedOutcomes
		}
		const counts = abi.NeedOutcomes | abi.NeedConnections
		r.counted.Enforced, r.counted.Needs = r.counted.Enforced|enforced&counts, r.counted.Needs|(enforced|shadow)&counts
	}
	r.counted.Outcomes = r.counted.All || r.counted.Needs&rs.settings.OutcomeNeeds != 0
	if r.record != nil {
		r.record.outcomes = r.counted.Outcomes
	}
	r.quota = rs.settings.ServiceLimits.newQuota(svc, r.addrs)
	for i, f := range model.Families {
		r.ranges[i] = rs.rules.sourceRanges(svc, f, rs.settings.ServiceLimits.SourceRanges)
	}
	return r
}

// evaluate evaluates the remaining ports as far as the budget allows, and reports whether that is all of them.
func (rs *rounds) evaluate(r *round, s *serviceState, now time.Time, budget *cost.Budget) (done bool) {
	if r.paused = rs.resume(r, now, budget); r.paused {
		return false
	}
	rs.closePorts(r, budget)
	for ; r.next < len(model.Families)*len(r.svc.Ports) && !r.quota.exhausted(); r.next++ {
		f := model.Families[r.next%len(model.Families)]
		if !r.svc.HasFamily(f) {
			rs.deletePools(r.svc, &r.svc.Ports[r.next/len(model.Families)], f)
			continue
		}
		// While a Service exceeds its limits, it is not known which ports are left out: each one waits for those before.
		if r.paused = rs.evaluator.Full() || len(r.open) > 0 && s.summary.Limited; r.paused {
			return false
		}
		if budget.Spent() || !rs.evaluatePort(r, f, now, budget) {
			r.paused = len(r.open) > 0 || r.port.asks()
			return false
		}
	}
	if r.paused = len(r.open) > 0; r.paused {
		return false
	}
	if r.quota.first == nil && r.next < len(model.Families)*len(r.svc.Ports) && r.quota.wanted > len(r.frontends) {
		next := &r.svc.Ports[r.next/len(model.Families)]
		r.quota.first = &plan.Frontend{
			Key:   plan.Key{Addr: r.svc.ClusterIPs[0], Port: next.Port, Protocol: next.Protocol},
			Owner: model.PortName{Service: r.svc.Name, Port: next.Name, Protocol: next.Protocol},
		}
	}
	if !rs.addSplits(r, s, budget) {
		return false
	}
	r.frontends = claims.Sort(r.frontends)
	r.evaluated = true
	return true
}

// evaluatePort continues the evaluation of the port that is next, and reports whether it is complete.
func (rs *rounds) evaluatePort(r *round, f model.Family, now time.Time, budget *cost.Budget) (done bool) {
	if r.port.decision.Port == nil {
		if r.routeOf(r.next) != nil && r.record == nil { // no connection is for the Service's own endpoints
			rs.deletePools(r.svc, &r.svc.Ports[r.next/len(model.Families)], f)
			return true
		}
		port := rs.selectPort(r.svc, r.next/len(model.Families), f)
		budget.Spend(cost.Look * (len(rs.cluster.Slices[r.svc.Name]) + len(port.Endpoints)))
		rs.beginPort(r, &r.port, port, r.policies[r.next/len(model.Families)], now)
		r.port.next = r.next
	}
	d := &r.port.decision
	large := len(d.Port.Endpoints) >= largePort
	for pool, decided := range r.port.decided {
		if decided {
			continue
		}
		if large && budget.Spent() {
			return false
		}
		if rs.decidePool(r, &r.port, pool, now) && r.port.policy != nil {
			budget.Spend(len(r.port.policy.Steps) * (requestCost + requestCostEach*len(d.Port.Endpoints)))
		}
	}
	if large && budget.Spent() {
		return false
	}
	if len(r.open) > 0 || r.port.asks() {
		r.open = append(r.open, r.port)
	} else {
		rs.addPort(r, &r.port, budget)
	}
	r.port = portRound{}
	return true
}

// selectPort selects the endpoints of a Service port, for the pools of the Service and of those that routes split over it.
func (rs *rounds) selectPort(svc *model.Service, i int, f model.Family) *eligibility.Port {
	port := eligibility.SelectEndpointsInto(rs.newPort(), svc, &svc.Ports[i], f, rs.cluster.Slices[svc.Name], rs.nodeInfo)
	if len(rs.routes.parents[svc.Name]) > 0 {
		port.Use(true, rs.localWanted(svc.Name))
	}
	return port
}

// resume goes on with the decisions of the open ports for which answers are there, and reports whether plugins have to answer
// again, such as the next one of a chain.
func (rs *rounds) resume(r *round, now time.Time, budget *cost.Budget) (asks bool) {
	for i := range r.open {
		o := &r.open[i]
		for pool, asked := range o.asked {
			if asked {
				calls := rs.evaluator.PluginCalls()
				rs.decidePool(r, o, pool, now)
				budget.Spend(callCost * int(rs.evaluator.PluginCalls()-calls))
			}
		}
		asks = asks || o.asks()
	}
	return asks
}

// closePorts adds the open ports.
func (rs *rounds) closePorts(r *round, budget *cost.Budget) {
	for i := range r.open {
		o := &r.open[i]
		if r.quota.exhausted() {
			rs.evaluator.DeleteFamily(o.decision.Port.Name, o.decision.Port.Family)
			r.next = min(r.next, o.next)
			continue
		}
		rs.addPort(r, o, budget)
	}
	clear(r.open)
	r.open = r.open[:0]
}

// addPort adds a port that is decided.
func (rs *rounds) addPort(r *round, o *portRound, budget *cost.Budget) {
	for pool := range o.decided {
		d, used := o.pool(pool)
		if !used {
			continue
		}
		if r.err == nil {
			r.err = d.Err
		}
		r.addFailure(o.policy, d.Err)
		r.enforced.add(&d.Evaluation, o.requeueAt[pool])
		if d.Shadow != nil {
			r.shadow.add(&d.Shadow.Evaluation, d.Shadow.RequeueAt)
		}
		if len(r.guards) > 0 && d.Without != nil {
			r.shift.Add(o.decision.Port, d, r.instead)
			d.Without = nil // it is not kept
		}
	}
	r.addDecision(&o.decision, o.policy)
	if r.routeOf(o.next) == nil {
		rs.addFrontends(r, o.next, &o.decision, o.policy, r.counted.Outcomes, budget)
	}
	rs.releasePort(o.decision.Port)
}

// addFrontends adds the frontends of a port, next, with outcomes or without. Its sheds are those of a policy.
func (rs *rounds) addFrontends(r *round, next int, d *policy.PortDecision, by *policy.Policy, outcomes bool, budget *cost.Budget) {
	r.udp.add(d.Port)
	own := r.policies[next/len(model.Families)] // also of a port with a route
	frontends := rs.rules.frontends(r, d, outcomes, own != nil && own.LongLived)
	budget.Spend(cost.Frontend * (1 + len(frontends)))
	r.addSheds(d, by, frontends)
	r.add(&rs.settings.ServiceLimits, d, frontends)
}

// addSplits adds the frontends of the ports that have a route, as far as the budget allows, and reports whether that is all.
// While a backend has not been decided about, a port keeps those that it has.
func (rs *rounds) addSplits(r *round, s *serviceState, budget *cost.Budget) (done bool) {
	for ; r.nextSplit < len(model.Families)*len(r.svc.Ports) && r.routes != nil; r.nextSplit++ {
		f, port := model.Families[r.nextSplit%len(model.Families)], &r.svc.Ports[r.nextSplit/len(model.Families)]
		route := r.routeOf(r.nextSplit)
		if route == nil || !r.svc.HasFamily(f) {
			continue
		}
		if budget.Spent() {
			return false
		}
		split := rs.split(r.svc, port, f, route, r.record)
		if split == nil {
			rs.keepFrontends(r, s, port, f)
			continue
		}
		budget.Spend(cost.Look * len(split.Parts) * (1 + len(split.from)))
		r.counted.Add(split.Decision.Port)
		rs.addFrontends(r, r.nextSplit, &split.Decision, split.by, r.counted.Outcomes || split.outcomes, budget)
	}
	return true
}

// keepFrontends adds the frontends that a port has.
func (rs *rounds) keepFrontends(r *round, s *serviceState, port *model.ServicePort, f model.Family) {
	name := model.PortName{Service: r.svc.Name, Port: port.Name, Protocol: port.Protocol}
	for _, fe := range rs.claims.Wanted(r.svc.Name) {
		if fe.Owner == name && fe.Key.Family() == f && r.quota.take(fe) {
			r.frontends = append(r.frontends, fe)
		}
	}
	if at := (udpPort{port.Name, f}); port.Protocol == model.UDP {
		r.udp.keep(at, s.udp)
	}
}

// decide evaluates the policy of a Service port in one family.
func (rs *rounds) decide(r *round, port *eligibility.Port, by *policy.Policy, now time.Time) policy.PortDecision {
	var of portRound
	rs.beginPort(r, &of, port, by, now)
	for pool := range of.decided {
		rs.decidePool(r, &of, pool, now)
	}
	return of.decision
}

// beginPort begins the evaluation of a Service port in one family.
func (rs *rounds) beginPort(r *round, of *portRound, port *eligibility.Port, by *policy.Policy, now time.Time) {
	holds, heldUntil := rs.evaluator.Hold(by, port, now)
	if !heldUntil.IsZero() {
		r.enforced.requeueAt = earlier(r.enforced.requeueAt, heldUntil.UnixMilli())
	}
	*of = portRound{decision: policy.PortDecision{Port: port}, policy: by, holds: holds}
}

// decidePool evaluates the policy for a pool, or goes on with the answers that it waits for, and reports whether the port has the
// pool.
func (rs *rounds) decidePool(r *round, o *portRound, pool int, now time.Time) (used bool) {
	port, decide := o.decision.Port, rs.evaluator.Ask
	if o.asked[pool] {
		decide = rs.evaluator.Resume
	}
	decision, used := o.pool(pool)
	if o.decided[pool] = true; !used {
		rs.evaluator.DeletePool(policy.PoolKey{Port: port.Name, Family: port.Family, Pool: uint8(pool)})
		return false
	}
	in := rs.input(r.svc, port)
	in.Pool = uint8(pool)
	*decision, o.requeueAt[pool], o.asked[pool] = decide(o.policy, &in, now)
	decision.Hold = o.holds[pool]
	return true
}

// settingsOf returns the state of the settings that a Service has set, given the policies of its ports. They are for the policy
// that the configuration file gives it: objects have their settings themselves.
func (rs *rounds) settingsOf(svc *model.Service, ports []*policy.Policy) policy.ServiceSettings {
	var object *policy.Policy
	for _, of := range ports {
		if of != nil && !of.FromObject {
			return rs.evaluator.Settings(svc, of)
		}
		object = cmp.Or(object, of)
	}
	rs.evaluator.DeleteSettings(svc.Name)
	switch {
	case svc.Settings == "":
		return policy.ServiceSettings{InForce: object}
	case object != nil:
		return policy.ServiceSettings{Text: svc.Settings, InForce: object,
			Err: fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: %s decides, whose settings are in the object", svc.Name, object.Name)}
	}
	return policy.ServiceSettings{Text: svc.Settings, Err: fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: the Service has no policy", svc.Name)}
}

// deletePools deletes the decisions about a port in a family that its Service does not have.
func (rs *rounds) deletePools(svc *model.Service, port *model.ServicePort, f model.Family) {
	name := model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol}
	rs.evaluator.DeleteFamily(name, f)
}

// forget deletes the decisions about ports that a Service no longer has.
func (rs *rounds) forget(old, ports []model.PortName) {
	if slices.Equal(old, ports) {
		return
	}
	kept := make(map[model.PortName]bool, len(ports))
	for _, port := range ports {
		kept[port] = true
	}
	for _, port := range old {
		if !kept[port] {
			rs.evaluator.Delete(port)
		}
	}
}

// newPort returns a port to select endpoints into.
func (rs *rounds) newPort() *eligibility.Port {
	if n := len(rs.ports); n > 0 {
		port := rs.ports[n-1]
		rs.ports = rs.ports[:n-1]
		return port
	}
	return &eligibility.Port{}
}

// releasePort keeps a port for reuse.
func (rs *rounds) releasePort(port *eligibility.Port) {
	if cap(port.Endpoints) < largePort && len(rs.ports) < maxSpare {
		rs.ports = append(rs.ports, port)
	}
}

// release keeps a round for reuse.
func (rs *rounds) release(r *round) {
	clear(r.policies)
	*r = round{open: r.open, policies: r.policies[:0]}
	if len(rs.spare) < maxSpare {
		rs.spare = append(rs.spare, r)
	}
}

// maxSpare is how many rounds and ports are kept for reuse: as many as wait for answers at the same time.
const maxSpare = 64

// largePort is from how many endpoints on a port takes several turns.
const largePort = 1000
