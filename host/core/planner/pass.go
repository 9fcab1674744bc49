package planner

import (
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// planService plans a Service and adds the consequences to result. It reports whether it is done; if not, the next call
// continues.
func (p *Planner) planService(s *serviceState, now time.Time, result *Result, budget *cost.Budget) (done bool) {
	name := s.place.Name
	svc := p.cluster.Services[name]
	if svc == nil {
		if s.planned {
			p.deleteService(name, s, result)
		}
		return p.claims.Set(name, nil, nil, budget)
	}
	if !s.planned {
		p.deleteNewcomer(name)
		p.services[name], s.planned = s, true
	}
	r := s.round
	if r == nil {
		r = p.begin(svc)
		budget.Spend(len(svc.SourceRanges) * cost.Look)
		r.udp = udpRound{svc: svc, at: now.UnixMilli(), before: s.udp}
		p.queue.BeginRound(&s.place)
		if s.policy == nil && r.governed() {
			s.policy = &policyState{}
		}
		if s.policy != nil {
			p.indexValues(name, s.policy, r.policies)
			s.policy.setGuards(name, r.guards)
		}
	}
	s.round = r
	if !r.evaluated {
		if !p.evaluate(r, s, now, budget) {
			return false
		}
		p.setUDP(name, s, r.udp.now) // before the first of the frontends is in the plan
		p.setRecord(name, s, r.record, p.classNow())
	}
	if r.paused = false; !p.claims.Set(name, r.svc, r.frontends, budget) {
		return false
	}
	s.round = nil
	p.finish(r, s, now, result)
	again := r.again
	p.release(r)
	return !again
}

func (p *Planner) deleteService(name model.Name, s *serviceState, result *Result) {
	for _, port := range s.ports {
		p.evaluator.Delete(port)
	}
	if r := s.round; r != nil { // it has asked for ports that are not in s.ports yet
		for i := range r.svc.Ports {
			p.evaluator.Delete(model.PortName{Service: name, Port: r.svc.Ports[i].Name, Protocol: r.svc.Ports[i].Protocol})
		}
	}
	p.evaluator.DeleteSettings(name)
	p.evaluator.DeleteChoice(name)
	p.sheds.set(name, nil, 0)
	if q := s.policy; q != nil {
		p.values.replace(name, q.values.names, nil)
		p.outcomes.Delete(name, &q.counted)
		q.setGuards(name, nil)
	}
	var none tally.Summary
	none.EndHealth(&s.summary)
	result.addShadow(name, &s.summary, &none)
	p.replaceSummary(&s.summary, &none, result)
	delete(p.keepsUDP, name)
	p.setRecord(name, s, nil, p.classNow())
	delete(p.services, name)
	*s = serviceState{place: s.place}
	p.addNewcomer(s)
}

// finish records a round whose frontends are set, and adds the consequences to result.
func (p *Planner) finish(r *round, s *serviceState, now time.Time, result *Result) {
	name := r.svc.Name
	s.decisions = r.decisions
	settings := p.settingsOf(r.svc, r.policies)
	sum := r.summary.Summary(r.svc, r.err != nil && !errors.Is(r.err, policy.ErrPending))
	sum.Choice = tally.ChoiceOf(r.svc, r.choiceErr)
	sum.OwnSettings, sum.RefusedSettings = settings.Text != "" && settings.Err == nil, settings.Err != nil
	sum.EndHealth(&s.summary)
	omitted := append(r.omitted(&p.settings.ServiceLimits), r.longAnnotations(p.evaluator)...)
	if sum.Limited = len(omitted) > 0; sum.Limited && !s.summary.Limited {
		result.NewlyLimited = append(result.NewlyLimited, omitted...)
	}
	s.omitted = omitted
	result.addHold(r, &s.summary, &sum)
	result.addShadow(name, &s.summary, &sum)
	if s.policy != nil {
		p.finishPolicy(r, s.policy, settings, sum.Shadow(), now, result)
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
	p.setRequeue(name, s, false, earlier(earlier(r.enforced.requeueAt, r.udp.requeueAt), s.dueResets(r.frontends, now.UnixMilli(), result)))
	p.setRequeue(name, s, true, r.shadow.requeueAt)
}

// finishPolicy records the part of a round that policies need, and adds its consequences to result.
func (c *connections) finishPolicy(r *round, s *policyState, settings policy.ServiceSettings, shadow tally.ShadowSummary, now time.Time, result *Result) {
	name := r.svc.Name
	if reportOnce(r.err, &s.reported) {
		result.Errors = append(result.Errors, &ServiceError{name, r.err})
	}
	s.reportChoice(r.choiceErr, result)
	s.err, s.failed, s.settings, s.shift = r.err, r.failed, settings, r.shift
	s.reportSettings(name, result)
	if (shadow.Err != nil || !shadow.Pending) && reportOnce(shadow.Err, &s.shadowFailed) {
		result.ShadowErrors = append(result.ShadowErrors, &ServiceError{name, shadow.Err})
	}
	c.outcomes.Set(name, &s.counted, r.counted)
	c.setInForce(s, r, now)
}

// replaceSummary replaces what a Service contributes to the totals.
func (p *Planner) replaceSummary(old, now *tally.Summary, result *Result) {
	p.counters.Replace(old, now)
	if h := now.Health(); h != old.Health() {
		result.HealthChecks = append(result.HealthChecks, h)
	}
}
