package planner

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// round is the planning of one Service: each port in each family is evaluated, then the frontends are set. That of a large
// Service takes several Plans. It keeps to the Service as it was at its beginning; a change meanwhile leads to another round.
//
// The ports before next are added, except those in open, which follow in their order; frontends and sums are those of added ports.
type round struct {
	svc       *model.Service
	policies  []*policy.Policy    // by port; nil: none
	choiceErr *policy.ChoiceError // of the annotation; nil: none
	err       error               // of the policy's chain
	failed    []PolicyError       // of each policy whose chain fails
	addrs     []claims.Addr
	ranges    [2]ranges // of IPv4 and IPv6
	quota     quota
	next      int       // what to evaluate next: twice the index of the port, plus one for IPv6
	port      portRound // that of next
	// open are evaluated ports before next that are not added, because one before them waits for the answer to a call of this Plan.
	open      []portRound
	paused    bool // it goes on when these answers are there, or are late
	evaluated bool // all ports
	again     bool // the Service has changed since the beginning

	frontends []*plan.Frontend
	summary   tally.Builder
	decisions *decisionCache // nil without a policy
	udp       udpRound
	ports     []model.PortName
	enforced  chainWait
	shadow    chainWait
	// The first frontend of the port with the most endpoints, if that is more than the limit.
	crowded   *plan.Frontend
	endpoints int
	// Endpoints of all ports that may not be, and the first frontend and reason.
	unsafe    int
	unsafeAt  *plan.Frontend
	unsafeWhy error
	sheds     map[shedKey]wantedShed
	shedding  *policy.Policy // that asks for more of them than it may
	counted   tally.Wanted
	guards    []*guard // that concern the Service
	instead   string   // the policy that applies without the guarded one that decides; "": none
	shift     policy.Shift
}

// begin begins a round.
func (p *Planner) begin(svc *model.Service) *round {
	var r *round
	if n := len(p.spare); n > 0 {
		r, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		r = &round{}
	}
	p.warnOfExternalIPs(svc)
	svc = p.served(svc)
	r.svc, r.addrs = svc, claims.AddrsOf(svc)
	r.policies, r.choiceErr = p.evaluator.Choose(p.settings.Policies, svc, r.policies[:0])
	r.guards, r.instead = p.guardsOf(svc)
	r.counted.All = p.settings.CountAll || len(r.guards) > 0
	for i, of := range r.policies {
		if of == nil || i > 0 && of == r.policies[i-1] {
			continue
		}
		r.decisions = &decisionCache{}
		enforced, shadow := p.evaluator.Needs(of)
		if of.Panic.Below > 0 {
			enforced |= abi.NeedOutcomes
		}
		const counts = abi.NeedOutcomes | abi.NeedConnections
		r.counted.Enforced, r.counted.Needs = r.counted.Enforced|enforced&counts, r.counted.Needs|(enforced|shadow)&counts
	}
	r.counted.Outcomes = r.counted.All || r.counted.Needs&p.settings.OutcomeNeeds != 0
	r.quota = p.settings.ServiceLimits.newQuota(svc, r.addrs)
	for i, f := range model.Families {
		r.ranges[i] = p.rules.sourceRanges(svc, f, p.settings.ServiceLimits.SourceRanges)
	}
	return r
}

// evaluate evaluates the remaining ports as far as the budget allows, and reports whether that is all of them.
func (p *Planner) evaluate(r *round, s *serviceState, now time.Time, budget *cost.Budget) (done bool) {
	if r.paused = false; r.evaluated {
		return true
	}
	if r.paused = p.resume(r, now, budget); r.paused {
		return false
	}
	p.closePorts(r, budget)
	for ; r.next < len(model.Families)*len(r.svc.Ports) && !r.quota.exhausted(); r.next++ {
		f := model.Families[r.next%len(model.Families)]
		if !r.svc.HasFamily(f) {
			p.deletePools(r.svc, &r.svc.Ports[r.next/len(model.Families)], f)
			continue
		}
		// While a Service exceeds its limits, it is not known which ports are left out: each one waits for those before.
		if r.paused = p.evaluator.Full() || len(r.open) > 0 && s.summary.Limited; r.paused {
			return false
		}
		if budget.Spent() || !p.evaluatePort(r, f, now, budget) {
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
	r.frontends = claims.Sort(r.frontends)
	r.evaluated = true
	p.setUDP(r.svc.Name, s, r.udp.now) // before the first of the frontends is in the plan
	return true
}

// portRound is the evaluation of a port in one family; before it begins, the decision has no Port. A port with many endpoints takes several turns: selecting 10,000 endpoints takes 2 ms,
// and so does deciding about a pool of them.
type portRound struct {
	decision  policy.PortDecision
	policy    *policy.Policy
	next      int             // round.next
	holds     [2]*policy.Hold // by pool
	decided   [2]bool
	asked     [2]bool      // the decision waits for the answer to a call of this Plan
	requeueAt [2]time.Time // of the pool's policy
}

func (o *portRound) asks() bool { return o.asked != [2]bool{} }

// waitsFor reports whether a round goes on with the decision about a pool.
func (r *round) waitsFor(k policy.PoolKey) bool {
	for i := range r.open {
		if r.open[i].waitsFor(k) {
			return true
		}
	}
	return r.port.waitsFor(k)
}

func (o *portRound) waitsFor(k policy.PoolKey) bool {
	p := o.decision.Port
	return p != nil && o.asked[k.Pool] && p.Name == k.Port && p.Family == k.Family
}

// pool returns the decision about a pool, and whether the port has it.
func (o *portRound) pool(pool int) (d *policy.Decision, used bool) {
	if pool == abi.PoolLocal {
		return &o.decision.Local, o.decision.Port.UsesLocal
	}
	return &o.decision.Cluster, o.decision.Port.UsesCluster
}

// largePort is from how many endpoints on a port takes several turns.
const largePort = 1000

// evaluatePort continues the evaluation of the port that is next, and reports whether it is complete.
func (p *Planner) evaluatePort(r *round, f model.Family, now time.Time, budget *cost.Budget) (done bool) {
	if r.port.decision.Port == nil {
		endpointSlices := p.cluster.Slices[r.svc.Name]
		port := eligibility.SelectEndpointsInto(p.newPort(), r.svc, &r.svc.Ports[r.next/len(model.Families)], f, endpointSlices, p.nodeInfo)
		budget.Spend(cost.Look * (len(endpointSlices) + len(port.Endpoints)))
		p.beginPort(r, &r.port, port, r.policies[r.next/len(model.Families)], now)
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
		if p.decidePool(r, &r.port, pool, now) && r.port.policy != nil {
			budget.Spend(len(r.port.policy.Steps) * (requestCost + requestCostEach*len(d.Port.Endpoints)))
		}
	}
	if large && budget.Spent() {
		return false
	}
	if len(r.open) > 0 || r.port.asks() {
		r.port.next = r.next
		r.open = append(r.open, r.port)
	} else {
		p.addPort(r, &r.port, budget)
	}
	r.port = portRound{}
	return true
}

// resume goes on with the decisions of the open ports for which answers are there, and reports whether plugins have to answer again, such as the
// next one of a chain.
func (p *Planner) resume(r *round, now time.Time, budget *cost.Budget) (asks bool) {
	for i := range r.open {
		o := &r.open[i]
		for pool, asked := range o.asked {
			if asked {
				calls := p.evaluator.PluginCalls()
				p.decidePool(r, o, pool, now)
				budget.Spend(callCost * int(p.evaluator.PluginCalls()-calls))
			}
		}
		asks = asks || o.asks()
	}
	return asks
}

// closePorts adds the open ports.
func (p *Planner) closePorts(r *round, budget *cost.Budget) {
	for i := range r.open {
		o := &r.open[i]
		if r.quota.exhausted() {
			p.evaluator.DeleteFamily(o.decision.Port.Name, o.decision.Port.Family)
			r.next = min(r.next, o.next)
			continue
		}
		p.addPort(r, o, budget)
	}
	clear(r.open)
	r.open = r.open[:0]
}

// addPort adds a port that is decided.
func (p *Planner) addPort(r *round, o *portRound, budget *cost.Budget) {
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
	r.udp.add(o.decision.Port)
	frontends := p.rules.frontends(r, &o.decision)
	budget.Spend(cost.Frontend * (1 + len(frontends)))
	r.addSheds(&o.decision, o.policy, frontends)
	r.add(&p.settings.ServiceLimits, &o.decision, frontends)
	p.releasePort(o.decision.Port)
}

// maxSpare is how many rounds and ports are kept for reuse: as many as wait for answers at the same time.
const maxSpare = 64

// newPort returns a port to select endpoints into.
func (p *Planner) newPort() *eligibility.Port {
	if n := len(p.ports); n > 0 {
		port := p.ports[n-1]
		p.ports = p.ports[:n-1]
		return port
	}
	return &eligibility.Port{}
}

// releasePort keeps a port for reuse.
func (p *Planner) releasePort(port *eligibility.Port) {
	if cap(port.Endpoints) < largePort && len(p.ports) < maxSpare {
		p.ports = append(p.ports, port)
	}
}

// release keeps a round for reuse.
func (p *Planner) release(r *round) {
	clear(r.policies)
	*r = round{open: r.open, policies: r.policies[:0]}
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, r)
	}
}

// decide evaluates the policy of a Service port in one family.
func (p *Planner) decide(r *round, port *eligibility.Port, by *policy.Policy, now time.Time) policy.PortDecision {
	var of portRound
	p.beginPort(r, &of, port, by, now)
	for pool := range of.decided {
		p.decidePool(r, &of, pool, now)
	}
	return of.decision
}

// beginPort begins the evaluation of a Service port in one family.
func (p *Planner) beginPort(r *round, of *portRound, port *eligibility.Port, by *policy.Policy, now time.Time) {
	holds, heldUntil := p.evaluator.Hold(by, port, now)
	if !heldUntil.IsZero() {
		r.enforced.requeueAt = earlier(r.enforced.requeueAt, heldUntil.UnixMilli())
	}
	*of = portRound{decision: policy.PortDecision{Port: port}, policy: by, holds: holds}
}

// decidePool evaluates the policy for a pool, or goes on with the answers that it waits for, and reports whether the port has the pool.
func (p *Planner) decidePool(r *round, o *portRound, pool int, now time.Time) (used bool) {
	port, decide := o.decision.Port, p.evaluator.Ask
	if o.asked[pool] {
		decide = p.evaluator.Resume
	}
	decision, used := o.pool(pool)
	if o.decided[pool] = true; !used {
		p.evaluator.DeletePool(policy.PoolKey{Port: port.Name, Family: port.Family, Pool: uint8(pool)})
		return false
	}
	in := p.input(r.svc, port)
	in.Pool = uint8(pool)
	*decision, o.requeueAt[pool], o.asked[pool] = decide(o.policy, &in, now)
	decision.Hold = o.holds[pool]
	return true
}

// settingsOf returns the state of the settings that a Service has set, given the policies of its ports. They are for the policy that the
// configuration file gives it: objects have their settings themselves.
func (p *Planner) settingsOf(svc *model.Service, ports []*policy.Policy) policy.ServiceSettings {
	var object *policy.Policy
	for _, of := range ports {
		if of != nil && !of.FromObject {
			return p.evaluator.Settings(svc, of)
		}
		object = cmp.Or(object, of)
	}
	p.evaluator.DeleteSettings(svc.Name)
	switch {
	case svc.Settings == "":
		return policy.ServiceSettings{InForce: object}
	case object != nil:
		return policy.ServiceSettings{Text: svc.Settings, InForce: object,
			Err: fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: %s decides, whose settings are in the object", svc.Name, object.Name)}
	}
	return policy.ServiceSettings{Text: svc.Settings, Err: fmt.Errorf("Service %s: metadata.annotations[sluice.dev/settings]: the Service has no policy", svc.Name)}
}

// input returns the input of the policy of a Service port, except for the pool.
func (p *Planner) input(svc *model.Service, port *eligibility.Port) policy.Input {
	return policy.Input{
		Service: svc, Port: port, Node: p.nodeInfo.Node, Zone: p.nodeInfo.Zone, Zones: p.zones,
		NodesUnknown: p.nodesPartial, NodeIndex: p.nodeIndex, NodeCount: p.nodeCount,
		Pods: policy.Pods{All: p.cluster.Pods, Pending: p.cluster.PodsOf(svc.Name) == model.PodsPending},
	}
}

// add adds the decision about a port and its frontends.
func (r *round) add(l *Limits, d *policy.PortDecision, frontends []*plan.Frontend) {
	r.frontends = append(r.frontends, frontends...)
	r.counted.Add(d.Port)
	r.summary.Add(r.svc, d)
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
	s.err, s.failed, s.decisions = r.err, r.failed, r.decisions
	s.settings = p.settingsOf(r.svc, r.policies)
	s.reportSettings(name, result)
	sum := r.summary.Summary(r.svc, r.err != nil && !errors.Is(r.err, policy.ErrPending))
	sum.Choice = tally.ChoiceOf(r.svc, r.choiceErr)
	sum.OwnSettings, sum.RefusedSettings = s.settings.Text != "" && s.settings.Err == nil, s.settings.Err != nil
	if sum.Health.Port == 0 {
		sum.Health.Service = s.summary.Health.Service // of the port that the Service had
	}
	omitted := append(r.omitted(&p.settings.ServiceLimits), r.longAnnotations(p.evaluator)...)
	if sum.Limited = len(omitted) > 0; sum.Limited && !s.summary.Limited {
		result.NewlyLimited = append(result.NewlyLimited, omitted...)
	}
	s.omitted = omitted
	result.addHold(r, &s.summary, &sum)
	result.addShadow(name, &s.summary, &sum)
	if w := &sum.Shadow; (w.Err != nil || !w.Pending) && reportOnce(w.Err, &s.shadowFailed) {
		result.ShadowErrors = append(result.ShadowErrors, &ServiceError{name, w.Err})
	}
	p.replaceSummary(&s.summary, &sum, result)
	s.summary = sum
	s.draining = drainingSince(s.draining, r.summary.Draining(), now.UnixMilli())
	if p.sheds.set(name, r.sheds, now.UnixMilli()) {
		result.ShedsBounded = append(result.ShedsBounded, ShedBounded{name, r.shedding.Name, max(1, r.shedding.MaxShedPercentPerSecond)})
	}
	for _, f := range r.frontends {
		if r.udp.stales(f) && p.claims.Plan().Frontends[f.Key] == f {
			result.StaleUDP = append(result.StaleUDP, f.Key)
		}
	}
	result.UDPDrains.Kept += r.udp.drains.Kept
	result.UDPDrains.Expired += r.udp.drains.Expired
	p.forget(s.ports, r.ports)
	s.ports = r.ports
	s.enforced.awaited, s.shadow.awaited = r.enforced.awaited, r.shadow.awaited
	p.outcomes.Set(name, &s.counted, r.counted)
	p.setRequeue(name, s, false, earlier(earlier(r.enforced.requeueAt, r.udp.requeueAt), s.dueResets(r.frontends, now.UnixMilli(), result)))
	p.setRequeue(name, s, true, r.shadow.requeueAt)
	s.shift = r.shift
	p.setInForce(s, r, now)
}

// setInForce records which policy decides about a Service whose outcomes are counted.
func (p *Planner) setInForce(s *serviceState, r *round, now time.Time) {
	name, revision := "", ""
	// Connections are counted by Service: those of all ports count for the policy of the first one that has one.
	if i := slices.IndexFunc(r.policies, func(of *policy.Policy) bool { return of != nil }); i >= 0 && r.counted.Outcomes {
		name, revision = r.policies[i].Name, p.evaluator.Revision(r.policies[i])
	}
	p.outcomes.SetPolicy(&s.counted, name, revision, now)
}

// replaceSummary replaces what a Service contributes to the totals.
func (p *Planner) replaceSummary(old, now *tally.Summary, result *Result) {
	p.counters.Replace(old, now)
	if old.Health != now.Health {
		result.HealthChecks = append(result.HealthChecks, now.Health)
	}
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
