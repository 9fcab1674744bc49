package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// answerDelay bounds how long an answer waits for those of the Service's other calls. Each Plan of a Service costs as much as all
// of its ports: planning 1,000 ports again for each of 1,000 answers would cost more than the plugin.
const answerDelay = 100 * time.Millisecond

// Deliver passes calls of Result.Calls that have been made. A Plan that waits for them goes on with their answers. Otherwise the
// next Plans continue their chains, and when a chain has ended, its Service is planned again, or, while it waits for more
// answers, within answerDelay.
func (p *Planner) Deliver(calls []*policy.Call, now time.Time) {
	for _, c := range calls {
		again := p.evaluator.Answer(c)
		switch s := p.services[c.Key.Port.Service]; {
		case s == nil || s.round != nil && s.round.waitsFor(c.Key):
		case again && !c.Shadow:
			p.answers = append(p.answers, c)
		default: // the chain of a shadow continues when its Service is planned for it, after everything else
			p.answered(c, again, now)
		}
	}
}

// continueChains continues the chains of answers until the budget is spent. Planning their Services for each answer of a chain of
// three would take most of the time of an evaluation of the whole cluster.
func (p *Planner) continueChains(limit *cost.Budget, now time.Time) {
	n := 0
	for ; n < len(p.answers) && !p.stops(limit); n++ {
		limit.Spend(callCost)
		c := p.answers[n]
		var asked bool
		if c.Plugin != nil {
			asked = p.evaluator.Continue(c, now)
		} else {
			asked = p.askAgain(c.Key, now)
		}
		if !asked {
			p.answered(c, true, now)
		}
	}
	if p.answers = p.answers[n:]; len(p.answers) == 0 {
		p.answers = nil
	}
}

// askAgain asks for a pool again whose call was not kept, and reports whether that was necessary. The decision that is in force
// stays, so its Service is not planned.
func (rs *rounds) askAgain(k policy.PoolKey, now time.Time) bool {
	svc, s := rs.cluster.Services[k.Port.Service], rs.services[k.Port.Service]
	if svc == nil || s == nil || s.round != nil {
		return false
	}
	svc = rs.served(svc)
	i := slices.IndexFunc(svc.Ports, func(sp model.ServicePort) bool { return sp.Name == k.Port.Port && sp.Protocol == k.Port.Protocol })
	if i < 0 || !svc.HasFamily(k.Family) {
		return false
	}
	ports, _ := rs.evaluator.Choose(rs.settings.Policies, svc, nil)
	of := ports[i]
	port := rs.selectPort(svc, i, k.Family)
	defer rs.releasePort(port)
	rs.evaluator.Hold(of, port, now)
	in := rs.input(svc, port)
	in.Pool = k.Pool
	d, _ := rs.evaluator.Decide(of, &in, now)
	return d.Pending != nil
}

// answered schedules the Service of a chain that waits for no call any more, if again is set.
func (p *Planner) answered(c *policy.Call, again bool, now time.Time) {
	name := c.Key.Port.Service
	s := p.services[name]
	if s == nil {
		return
	}
	w := s.wait(c.Shadow)
	w.awaited = max(0, w.awaited-1)
	switch {
	case !again:
	case w.awaited > 0 && s.round == nil:
		p.setRequeue(name, s, c.Shadow, earlier(w.requeueAt, now.Add(answerDelay).UnixMilli()))
	default:
		p.schedule(s, dueFor(c.Shadow))
	}
}
