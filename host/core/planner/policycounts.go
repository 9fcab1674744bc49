package planner

import (
	"cmp"
	"slices"
	"time"
)

// PolicyConnections are the connections of the Services that a policy has decided about on this node since their outcomes are counted:
// those of a reading belong to the policy that was in force then. The numbers never decrease.
type PolicyConnections struct {
	Policy   string // "": the default rules
	Revision string // of the policy; "" for the default rules, and while it is not known
	Connections
}

// maxIdlePolicies bounds the policies and revisions that are counted and decide about no Service any more.
const maxIdlePolicies = 100

// policyCounts counts the connections of a policy.
type policyCounts struct {
	PolicyConnections
	services int    // that it decides about
	mark     uint64 // see Planner.AddOutcomes
	idleFrom uint64 // order in which policies have become idle
}

// countedPolicies are the policies whose connections are counted.
type countedPolicies struct {
	all     []*policyCounts
	idle    uint64 // how often a policy has become idle
	changed bool   // since they were reported
}

// of returns the counts of a policy.
func (k *countedPolicies) of(policy, revision string) *policyCounts {
	for _, c := range k.all {
		if c.Policy == policy && c.Revision == revision {
			return c
		}
	}
	c := &policyCounts{PolicyConnections: PolicyConnections{Policy: policy, Revision: revision}}
	k.all, k.changed = append(k.all, c), true
	return c
}

// replace replaces the policy that decides about a Service. Both may be nil.
func (k *countedPolicies) replace(old, now *policyCounts) {
	if now != nil {
		now.services++
	}
	if old == nil {
		return
	}
	if old.services--; old.services > 0 {
		return
	}
	k.idle++
	old.idleFrom = k.idle
	idle := 0
	oldest := old
	for _, c := range k.all {
		if c.services == 0 {
			idle++
			if c.idleFrom < oldest.idleFrom {
				oldest = c
			}
		}
	}
	if idle > maxIdlePolicies {
		k.all, k.changed = slices.DeleteFunc(k.all, func(c *policyCounts) bool { return c == oldest }), true
	}
}

// setInForce records which policy decides about a Service whose outcomes are counted.
func (p *Planner) setInForce(s *serviceState, r *round, now time.Time) {
	var c *policyCounts
	if r.counted.outcomes {
		name, revision := "", ""
		if r.policy != nil {
			name, revision = r.policy.Name, p.evaluator.Revision(r.policy)
		}
		if c = s.inForce; c == nil || c.Policy != name || c.Revision != revision {
			c = p.policies.of(name, revision)
		}
	}
	if c != s.inForce {
		p.policies.replace(s.inForce, c)
		s.inForce, s.inForceSince = c, now
	}
}

// reportPolicies adds the connections of policies to result if they have changed.
func (p *Planner) reportPolicies(result *Result) {
	if !p.policies.changed {
		return
	}
	p.policies.changed = false
	result.PolicyConnections = make([]PolicyConnections, 0, len(p.policies.all))
	for _, c := range p.policies.all {
		result.PolicyConnections = append(result.PolicyConnections, c.PolicyConnections)
	}
	slices.SortFunc(result.PolicyConnections, func(a, b PolicyConnections) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Revision, b.Revision))
	})
}
