package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// CountsOutcomes reports whether the plan has frontends with Outcomes.
func (p *Planner) CountsOutcomes() bool { return p.outcomes.Counting() }

// AddOutcomes adds the changes of a reading to the totals of the endpoints' Services and of their policies. Services with a new failure
// whose policy needs outcomes are planned again by the next Plan.
//
// The reading was taken now and covers the time since the one before: length is 0 if there was none. Its cost follows the changes.
func (p *Planner) AddOutcomes(now time.Time, length time.Duration, changes []outcomes.Change) {
	settled := now.Add(-length - settleTime)
	for i := range changes {
		c := &changes[i]
		names, mark := p.outcomes.ServicesOf(c)
		for _, name := range names {
			s := p.services[name]
			p.outcomes.Add(name, &s.counted, c)
			for _, g := range s.guards {
				if g.mark != mark && g.counts(s, settled) {
					g.mark = mark
					g.add(s, c)
				}
			}
			switch {
			case !c.Failed:
			case s.counted.Enforced&abi.NeedOutcomes != 0:
				p.schedule(s, queue.Due)
			case s.counted.Needs&abi.NeedOutcomes != 0:
				p.schedule(s, queue.ShadowDue)
			}
		}
	}
	p.endReading(now, length)
}

// NeedsConnections reports whether the policy of a Service needs open connections.
func (p *Planner) NeedsConnections() bool { return len(p.outcomes.NeedConnections()) > 0 }

// ConnectionsToCount returns the endpoints of each Service whose policy needs open connections. They do not change.
func (p *Planner) ConnectionsToCount() [][]model.EndpointKey {
	all := p.outcomes.NeedConnections()
	out := make([][]model.EndpointKey, 0, len(all))
	for _, c := range all {
		out = append(out, c.Endpoints())
	}
	return out
}

// FrontendsToCount returns the frontends of these Services.
func (p *Planner) FrontendsToCount() (frontends []plan.Key) {
	for name := range p.outcomes.NeedConnections() {
		for f := range p.claims.Has(name) {
			frontends = append(frontends, f.Key)
		}
	}
	return frontends
}
