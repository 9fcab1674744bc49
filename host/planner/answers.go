package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
)

// answerDelay bounds how long an answer waits for those of the Service's other calls. Each Plan of a Service costs as much as all
// of its ports: planning 1,000 ports again for each of 1,000 answers would cost more than the plugin.
const answerDelay = 100 * time.Millisecond

// Deliver passes the answers of plugin calls that were queued, see policy.Caller. Their Services are planned again by the next
// Plan, or, while they wait for more answers, within answerDelay.
func (p *Planner) Deliver(calls []*policy.Call, now time.Time) {
	for _, c := range calls {
		name := c.Key.Port.Service
		again, s := p.evaluator.Deliver(c), p.services[name]
		if s == nil {
			continue
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
}

// Awaited returns the number of decisions that wait for a plugin. It looks at all of them.
func (p *Planner) Awaited() int { return p.evaluator.Awaited() }
