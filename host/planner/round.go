package planner

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// round is the planning of one Service: each port in each family is evaluated, then the frontends are set. That of a large
// Service takes several Plans. It keeps to the Service as it was at its beginning; a change meanwhile leads to another round.
type round struct {
	svc       *model.Service
	policy    *policy.Policy
	choiceErr *policy.ChoiceError // of the annotation; nil: none
	err       error               // of the policy's chain
	addrs     []serviceAddr
	ranges    [2]ranges // of IPv4 and IPv6
	quota     quota
	next      int       // what to evaluate next: twice the index of the port, plus one for IPv6
	port      portRound // that of next
	evaluated bool      // all ports
	again     bool      // the Service has changed since the beginning

	frontends []*plan.Frontend
	summary   summaryBuilder
	decisions *decisionCache // nil without a policy
	udp       udpRound
	ports     []model.PortName
	enforced  chainWait
	shadow    chainWait
	refused   []string // plugins
	// The first frontend of the port with the most endpoints, if that is more than the limit.
	crowded   *plan.Frontend
	endpoints int
	// Endpoints of all ports that may not be, and the first frontend and reason.
	unsafe    int
	unsafeAt  *plan.Frontend
	unsafeWhy error
	sheds     map[shedKey]wantedShed
	counted   countedService
	guards    []*guard // that concern the Service
}

// begin begins a round.
func (p *Planner) begin(svc *model.Service) *round {
	r := p.spare
	if p.spare = nil; r == nil {
		r = &round{}
	}
	p.warnOfExternalIPs(svc)
	svc = p.served(svc)
	r.svc, r.addrs = svc, addrsOf(svc)
	r.policy, r.choiceErr = p.evaluator.Choose(p.settings.Policies, svc)
	r.guards = p.guardsOf(svc)
	r.counted.all = p.settings.CountAll || len(r.guards) > 0
	if r.policy != nil {
		r.decisions = &decisionCache{}
		enforced, shadow := p.evaluator.Needs(r.policy)
		if r.policy.Panic.Below > 0 {
			enforced |= abi.NeedOutcomes
		}
		const counts = abi.NeedOutcomes | abi.NeedConnections
		r.counted.enforced, r.counted.needs = enforced&counts, (enforced|shadow)&counts
	}
	r.counted.outcomes = r.counted.all || r.counted.needs&p.settings.OutcomeNeeds != 0
	r.quota = p.settings.ServiceLimits.newQuota(svc, r.addrs)
	for i, f := range families {
		r.ranges[i] = p.rules.sourceRanges(svc, f, p.settings.ServiceLimits.SourceRanges)
	}
	return r
}

var families = [...]model.Family{model.IPv4, model.IPv6}

// evaluate evaluates the remaining ports as far as the budget allows, and reports whether that is all of them.
func (p *Planner) evaluate(r *round, s *serviceState, now time.Time, budget *budget) (done bool) {
	if r.evaluated {
		return true
	}
	for ; r.next < len(families)*len(r.svc.Ports) && !r.quota.exhausted(); r.next++ {
		f := families[r.next%len(families)]
		if !hasFamily(r.svc, f) {
			p.deletePools(r.svc, &r.svc.Ports[r.next/len(families)], f)
			continue
		}
		if budget.spent() || !p.evaluatePort(r, s, f, now, budget) {
			return false
		}
	}
	if r.quota.first == nil && r.next < len(families)*len(r.svc.Ports) && r.quota.wanted > len(r.frontends) {
		next := &r.svc.Ports[r.next/len(families)]
		r.quota.first = &plan.Frontend{
			Key:   plan.Key{Addr: r.svc.ClusterIPs[0], Port: next.Port, Protocol: next.Protocol},
			Owner: model.PortName{Service: r.svc.Name, Port: next.Name, Protocol: next.Protocol},
		}
	}
	r.frontends = sortFrontends(r.frontends)
	r.evaluated = true
	p.setUDP(r.svc.Name, s, r.udp.now) // before the first of the frontends is in the plan
	return true
}

// portRound is the evaluation of a port in one family; before it begins, the decision has no Port. A port with many endpoints takes several turns: selecting 10,000 endpoints takes 2 ms,
// and so does deciding about a pool of them.
type portRound struct {
	decision PortDecision
	holds    [2]*policy.Hold // by pool
	decided  [2]bool
}

// largePort is from how many endpoints on a port takes several turns.
const largePort = 1000

// evaluatePort continues the evaluation of the port that is next, and reports whether it is complete.
func (p *Planner) evaluatePort(r *round, s *serviceState, f model.Family, now time.Time, budget *budget) (done bool) {
	if r.port.decision.Port == nil {
		endpointSlices := p.cluster.Slices[r.svc.Name]
		port := service.SelectEndpointsInto(&p.scratch, r.svc, &r.svc.Ports[r.next/len(families)], f, endpointSlices, p.nodeInfo)
		if len(port.Endpoints) >= largePort { // the next turn may be after that of another Service
			own := p.scratch
			port, p.scratch = &own, service.Port{}
		}
		budget.spend(lookCost * (len(endpointSlices) + len(port.Endpoints)))
		p.beginPort(r, &r.port, port, now)
	}
	d := &r.port.decision
	large := len(d.Port.Endpoints) >= largePort
	for pool, decided := range r.port.decided {
		if decided {
			continue
		}
		if large && budget.spent() {
			return false
		}
		calls := p.evaluator.PluginCalls()
		used := p.decidePool(r, &r.port, uint8(pool), now)
		budget.spend(callCost * int(p.evaluator.PluginCalls()-calls))
		if used && r.policy != nil {
			budget.spend(len(r.policy.Steps) * (requestCost + requestCostEach*len(d.Port.Endpoints)))
		}
	}
	if large && budget.spent() {
		return false
	}
	r.udp.add(d.Port)
	frontends := p.rules.frontends(r, d)
	budget.spend(frontendCost * (1 + len(frontends)))
	r.add(&p.settings.ServiceLimits, d, frontends)
	r.port = portRound{}
	return true
}

// decide evaluates the policy of a Service port in one family.
func (p *Planner) decide(r *round, port *service.Port, now time.Time) PortDecision {
	var of portRound
	p.beginPort(r, &of, port, now)
	for pool := range of.decided {
		p.decidePool(r, &of, uint8(pool), now)
	}
	return of.decision
}

// beginPort begins the evaluation of a Service port in one family.
func (p *Planner) beginPort(r *round, of *portRound, port *service.Port, now time.Time) {
	holds, heldUntil := p.evaluator.Hold(r.policy, port, now)
	if !heldUntil.IsZero() {
		r.enforced.requeueAt = earlier(r.enforced.requeueAt, heldUntil.UnixMilli())
	}
	*of = portRound{decision: PortDecision{Port: port}, holds: holds}
}

// decidePool evaluates the policy for a pool, and reports whether the port has it.
func (p *Planner) decidePool(r *round, of *portRound, pool uint8, now time.Time) (used bool) {
	of.decided[pool] = true
	port, decision := of.decision.Port, &of.decision.Cluster
	used = port.UsesCluster
	if pool == abi.PoolLocal {
		decision, used = &of.decision.Local, port.UsesLocal
	}
	if !used {
		p.evaluator.DeletePool(policy.PoolKey{Port: port.Name, Family: port.Family, Pool: pool})
		return false
	}
	in := p.input(r.svc, port)
	in.Pool = pool
	got, at := p.evaluator.Decide(r.policy, &in, now)
	if r.err == nil {
		r.err = got.Err
	}
	r.addWait(&r.enforced, &got.Evaluation, at)
	if got.Shadow != nil {
		r.addWait(&r.shadow, &got.Shadow.Evaluation, got.Shadow.RequeueAt)
	}
	got.Hold = of.holds[pool]
	*decision = got
	return true
}

// settingsOf returns the state of the settings that a Service has set.
func (p *Planner) settingsOf(svc *model.Service, of *policy.Policy) policy.ServiceSettings {
	if of != nil {
		return p.evaluator.Settings(svc, of)
	}
	p.evaluator.DeleteSettings(svc.Name)
	if svc.Settings == "" {
		return policy.ServiceSettings{}
	}
	return policy.ServiceSettings{Text: svc.Settings, Err: fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: the Service has no policy", svc.Name)}
}

// input returns the input of the policy of a Service port, except for the pool.
func (p *Planner) input(svc *model.Service, port *service.Port) policy.Input {
	return policy.Input{
		Service: svc, Port: port, Node: p.nodeInfo.Node, Zone: p.nodeInfo.Zone, Zones: p.zones,
		NodesUnknown: p.nodesPartial, NodeIndex: p.nodeIndex, NodeCount: p.nodeCount,
		Pods: policy.Pods{All: p.cluster.Pods, Pending: p.cluster.PodsOf(svc.Name) == model.PodsPending},
	}
}

// addWait adds what a chain of the policy waits for.
func (r *round) addWait(w *chainWait, d *policy.Evaluation, requeueAt time.Time) {
	if !requeueAt.IsZero() {
		w.requeueAt = earlier(w.requeueAt, requeueAt.UnixMilli())
	}
	switch {
	case d.Pending == nil:
	case !d.Refused:
		w.awaited++
	case !slices.Contains(r.refused, d.Pending.Plugin):
		r.refused = append(r.refused, d.Pending.Plugin)
	}
}

// add adds the decision about a port and its frontends.
func (r *round) add(l *Limits, d *PortDecision, frontends []*plan.Frontend) {
	r.frontends = append(r.frontends, frontends...)
	r.counted.add(d.Port)
	r.summary.add(r.svc, d)
	r.addSheds(d, frontends)
	if r.decisions != nil {
		r.decisions.add(d)
	}
	if n := len(r.ports); n == 0 || r.ports[n-1] != d.Port.Name {
		r.ports = append(r.ports, d.Port.Name)
	}
	if d.Port.Refused > 0 && len(frontends) > 0 {
		if r.unsafe += d.Port.Refused; r.unsafeAt == nil {
			r.unsafeAt, r.unsafeWhy = frontends[0], d.Port.FirstRefusal
		}
	}
	if d.Port.Omitted > 0 && d.Port.Omitted+l.Endpoints > r.endpoints && len(frontends) > 0 {
		r.crowded, r.endpoints = frontends[0], d.Port.Omitted+l.Endpoints
	}
}

// finish records a round whose frontends are set, and adds the consequences to result.
func (p *Planner) finish(r *round, s *serviceState, now time.Time, result *Result) {
	name := r.svc.Name
	if reportOnce(r.err, &s.reported) {
		result.Errors = append(result.Errors, &ServiceError{name, r.err})
	}
	s.reportChoice(r.choiceErr, result)
	s.err, s.decisions = r.err, r.decisions
	s.settings = p.settingsOf(r.svc, r.policy)
	s.reportSettings(name, result)
	sum := r.summary.summarize(r.svc, r.err != nil && !errors.Is(r.err, policy.ErrPending))
	sum.choice = choiceOf(r.svc, r.choiceErr)
	sum.ownSettings, sum.refusedSettings = s.settings.Text != "" && s.settings.Err == nil, s.settings.Err != nil
	if sum.health.Port == 0 {
		sum.health.Service = s.summary.health.Service // of the port that the Service had
	}
	omitted := append(r.omitted(&p.settings.ServiceLimits), r.longAnnotations(p.evaluator)...)
	if sum.limited = len(omitted) > 0; sum.limited && !s.summary.limited {
		result.NewlyLimited = append(result.NewlyLimited, omitted...)
	}
	s.omitted = omitted
	result.addHold(r, &s.summary, &sum)
	result.addShadow(name, &s.summary, &sum)
	if w := &sum.shadow; (w.err != nil || !w.pending) && reportOnce(w.err, &s.shadowFailed) {
		result.ShadowErrors = append(result.ShadowErrors, &ServiceError{name, w.err})
	}
	p.counters.replace(&s.summary, &sum, result)
	s.summary = sum
	s.draining = drainingSince(s.draining, r.summary.draining, now.UnixMilli())
	if p.sheds.set(name, r.sheds, now.UnixMilli()) {
		result.ShedsBounded = append(result.ShedsBounded, ShedBounded{name, r.policy.Name, max(1, r.policy.MaxShedPercentPerSecond)})
	}
	for _, f := range r.frontends {
		if r.udp.stales(f) && p.builder.plan.Frontends[f.Key] == f {
			result.StaleUDP = append(result.StaleUDP, f.Key)
		}
	}
	result.UDPDrains.Kept += r.udp.drains.Kept
	result.UDPDrains.Expired += r.udp.drains.Expired
	p.forget(s.ports, r.ports)
	s.ports = r.ports
	s.enforced.awaited, s.shadow.awaited, s.turn = r.enforced.awaited, r.shadow.awaited, ""
	p.setRefused(name, s, r.refused)
	p.setCounted(name, s, r.counted)
	p.setRequeue(name, s, false, earlier(earlier(r.enforced.requeueAt, r.udp.requeueAt), s.dueResets(r.frontends, now.UnixMilli(), result)))
	p.setRequeue(name, s, true, r.shadow.requeueAt)
	p.setInForce(s, r, now)
}

// deletePools deletes the decisions about a port in a family that its Service does not have.
func (p *Planner) deletePools(svc *model.Service, port *model.ServicePort, f model.Family) {
	name := model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol}
	p.evaluator.DeleteFamily(name, f)
}

// forget deletes the decisions about ports that a Service no longer has.
func (p *Planner) forget(old, ports []model.PortName) {
	if slices.Equal(old, ports) {
		return
	}
	kept := make(map[model.PortName]bool, len(ports))
	for _, port := range ports {
		kept[port] = true
	}
	for _, port := range old {
		if !kept[port] {
			p.evaluator.Delete(port)
		}
	}
}

// ranges are the source ranges of a Service in one family; nil if every source may connect.
type ranges struct {
	list    []netip.Prefix
	omitted int
}
