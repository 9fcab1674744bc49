package tally

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/outcomes"
)

// PolicyConnections are the connections of the Services that a policy has decided about on this node since their outcomes are
// counted: those of a reading belong to the policy that was in force then. The numbers never decrease.
type PolicyConnections struct {
	Policy   string // "": the default rules
	Revision string // of the policy; "" for the default rules, and while it is not known
	Connections
}

// maxIdlePolicies bounds the policies and revisions that are counted and decide about no Service any more.
const maxIdlePolicies = 100

// PolicyCount counts the connections of a policy.
type PolicyCount struct {
	PolicyConnections
	services int    // that it decides about
	mark     uint64 // of the last change that was added
	idleFrom uint64 // order in which policies have become idle
}

// Policies are the policies whose connections are counted: those that decide about a Service, and up to maxIdlePolicies others.
type Policies struct {
	all     []*PolicyCount
	idle    uint64 // how often a policy has become idle
	changed bool   // since they were reported
}

// Of returns the counts of a policy.
func (k *Policies) Of(policy, revision string) *PolicyCount {
	for _, c := range k.all {
		if c.Policy == policy && c.Revision == revision {
			return c
		}
	}
	c := &PolicyCount{PolicyConnections: PolicyConnections{Policy: policy, Revision: revision}}
	k.all, k.changed = append(k.all, c), true
	return c
}

// Replace replaces the policy that decides about a Service. Both may be nil.
func (k *Policies) Replace(old, now *PolicyCount) {
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
		k.all, k.changed = slices.DeleteFunc(k.all, func(c *PolicyCount) bool { return c == oldest }), true
	}
}

// add adds the outcomes of an endpoint, once for all Services of the policy with the endpoint: mark identifies them.
func (k *Policies) add(c *PolicyCount, mark uint64, change *outcomes.Change) {
	if c.mark != mark {
		c.mark, k.changed = mark, true
		c.Connections.Add(change)
	}
}

// Report returns the connections of all policies, sorted, and nil if none has changed since the last Report.
func (k *Policies) Report() []PolicyConnections {
	if !k.changed {
		return nil
	}
	k.changed = false
	out := make([]PolicyConnections, 0, len(k.all))
	for _, c := range k.all {
		out = append(out, c.PolicyConnections)
	}
	slices.SortFunc(out, func(a, b PolicyConnections) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Revision, b.Revision))
	})
	return out
}
