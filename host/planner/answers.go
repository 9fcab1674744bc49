package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// answerDelay bounds how long an answer waits for those of the Service's other calls. Each Plan of a Service costs as much as all
// of its ports: planning 1,000 ports again for each of 1,000 answers would cost more than the plugin.
const answerDelay = 100 * time.Millisecond

// Deliver passes the answers of plugin calls that were queued, see policy.Caller. The next Plans continue their chains. When a chain has
// ended, its Service is planned again, or, while it waits for more answers, within answerDelay.
func (p *Planner) Deliver(calls []*policy.Call, now time.Time) {
	for _, c := range calls {
		switch again := p.evaluator.Deliver(c); {
		case again && !c.Shadow:
			p.answers = append(p.answers, c)
		default: // the chain of a shadow continues when its Service is planned for it, after everything else
			p.answered(c, again, now)
		}
	}
}

// continueChains continues the chains of answers until the budget is spent. Planning their Services for each answer of a chain of three
// would take most of the time of an evaluation of the whole cluster.
func (p *Planner) continueChains(limit *budget, now time.Time) {
	n := 0
	for ; n < len(p.answers) && !limit.spent(); n++ {
		limit.spend(callCost)
		c := p.answers[n]
		switch queued, refusedBy := p.evaluator.Continue(c, now); {
		case queued:
		case refusedBy != "":
			p.chainRefused(c, refusedBy)
		default:
			p.answered(c, true, now)
		}
	}
	if p.answers = p.answers[n:]; len(p.answers) == 0 {
		p.answers = nil
	}
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
	case !again, p.planAgain(name):
	case w.awaited > 0:
		p.setRequeue(name, s, c.Shadow, earlier(w.requeueAt, now.Add(answerDelay).UnixMilli()))
	case c.Shadow:
		p.enqueueShadow(name)
	default:
		p.enqueueDue(name)
	}
}

// chainRefused makes the Service of a chain wait until a plugin accepts the next call. To plan it before that would change nothing.
func (p *Planner) chainRefused(c *policy.Call, plugin string) {
	name := c.Key.Port.Service
	s := p.services[name]
	if s == nil {
		return
	}
	s.enforced.awaited = max(0, s.enforced.awaited-1)
	if !p.planAgain(name) && !slices.Contains(s.refused, plugin) {
		p.setRefused(name, s, append(slices.Clone(s.refused), plugin))
	}
}

// Awaited returns the number of decisions that wait for a plugin. It looks at all of them.
func (p *Planner) Awaited() int { return p.evaluator.Awaited() }
