package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/queue"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// connections is what is counted of connections, by Service.
type connections struct {
	*world
	outcomes tally.Outcomes
}

// CountsOutcomes reports whether the plan has frontends with Outcomes.
func (c *connections) CountsOutcomes() bool { return c.outcomes.Counting() }

// AddOutcomes adds the changes of a reading to the totals of the endpoints' Services and of their policies. Services with a new
// failure whose policy needs outcomes are planned again by the next Plan.
//
// The reading was taken now and covers the time since the one before: length is 0 if there was none. Its cost follows the
// changes.
func (p *Planner) AddOutcomes(now time.Time, length time.Duration, changes []outcomes.Change) {
	settled := now.Add(-length - settleTime)
	for i := range changes {
		c := &changes[i]
		names, mark := p.outcomes.ServicesOf(c)
		for _, name := range names {
			state := p.services[name]
			s := state.policy
			p.outcomes.Add(name, &s.counted, c)
			for _, g := range s.guards {
				if g.mark != mark && g.counts(&s.counted, &s.shift, settled) {
					g.mark = mark
					g.add(&s.shift, c)
				}
			}
			switch {
			case !c.Failed:
			case s.counted.Enforced&abi.NeedOutcomes != 0:
				p.schedule(state, queue.Due)
			case s.counted.Needs&abi.NeedOutcomes != 0:
				p.schedule(state, queue.ShadowDue)
			}
		}
	}
	p.endReading(now, length)
}

// NeedsConnections reports whether the policy of a Service needs open connections.
func (c *connections) NeedsConnections() bool { return len(c.outcomes.NeedConnections()) > 0 }

// ConnectionsToCount returns the endpoints of each Service whose policy needs open connections. They do not change.
func (c *connections) ConnectionsToCount() [][]model.EndpointKey {
	all := c.outcomes.NeedConnections()
	out := make([][]model.EndpointKey, 0, len(all))
	for _, c := range all {
		out = append(out, c.Endpoints())
	}
	return out
}

// FrontendsToCount returns the frontends of these Services, and of those that routes split over them.
func (c *connections) FrontendsToCount() (frontends []plan.Key) {
	services := map[model.Name]bool{}
	for name := range c.outcomes.NeedConnections() {
		services[name] = true
		for parent := range c.routes.parents[name] {
			services[parent] = true
		}
	}
	for name := range services {
		for f := range c.claims.Has(name) {
			frontends = append(frontends, f.Key)
		}
	}
	return frontends
}

// setInForce records which policy decides about a Service whose outcomes are counted.
func (c *connections) setInForce(s *policyState, r *round, now time.Time) {
	name, revision := "", ""
	// Connections are counted by Service: those of all ports count for the policy of the first one that has one.
	if i := slices.IndexFunc(r.policies, func(of *policy.Policy) bool { return of != nil }); i >= 0 && r.counted.Outcomes {
		name, revision = r.policies[i].Name, c.evaluator.Revision(r.policies[i])
	}
	c.outcomes.SetPolicy(&s.counted, name, revision, now)
}
