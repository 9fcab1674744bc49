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
		p.indexValues(name, s, r.policies)
		s.setGuards(name, r.guards)
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
	p.values.replace(name, s.values.names, nil)
	p.sheds.set(name, nil, 0)
	p.outcomes.Delete(name, &s.counted)
	result.addShadow(name, &s.summary, &tally.Summary{})
	s.setGuards(name, nil)
	p.replaceSummary(&s.summary, &tally.Summary{Health: tally.HealthCheck{Service: s.summary.Health.Service}}, result)
	delete(p.keepsUDP, name)
	p.setRecord(name, s, nil, p.classNow())
	delete(p.services, name)
	*s = serviceState{place: s.place}
	p.addNewcomer(s)
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

// replaceSummary replaces what a Service contributes to the totals.
func (p *Planner) replaceSummary(old, now *tally.Summary, result *Result) {
	p.counters.Replace(old, now)
	if old.Health != now.Health {
		result.HealthChecks = append(result.HealthChecks, now.Health)
	}
}
