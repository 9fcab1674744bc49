package planner

import (
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// settleTime is how long after a Service has got another policy its connections count for a guard: those that are reported as
// unanswered may have begun 1.5 s before the reading, see outcomes.Grace.
const settleTime = 2 * time.Second

// guard is the guard of a policy with the Services that it concerns: those that the policy decides about when it is in force.
type guard struct {
	policy   string
	state    *policy.GuardState
	services map[model.Name]bool
	mark     uint64 // of the last change that was added
	blind    bool
}

// GuardChange is what has changed about the guard of a policy.
type GuardChange struct {
	Policy string
	Phase  policy.GuardPhase
	Blind  bool // nothing is known of connections
	Text   string
}

// GuardStatus is the guard of a policy.
type GuardStatus struct {
	Policy string
	State  policy.GuardState
	// Blind: nothing was known of connections for a window. What decides stays in force meanwhile.
	Blind bool
}

// String describes it.
func (g *GuardStatus) String() string {
	text := fmt.Sprintf("policy %s %s", g.Policy, &g.State)
	if g.Blind {
		text += "; blind: no outcomes of connections are known, and nothing changes until they are"
	}
	return text
}

func (g *guard) status() GuardStatus { return GuardStatus{g.policy, *g.state, g.blind} }

// counts reports whether a Service's connections count for a guard, given the time at which they had settled.
func (g *guard) counts(c *tally.Counted, shift *policy.Shift, settled time.Time) bool {
	by, ok := c.DecidedBy(settled)
	if !ok || (by == g.policy) != g.state.InForce() {
		return false
	}
	return by != g.policy || !shift.Unknown
}

// add adds the outcomes of an endpoint to the reading, given the shift of its Service.
func (g *guard) add(shift *policy.Shift, c *outcomes.Change) {
	o := shift.Of(c.Key)
	o.Answered, o.Refused, o.Unanswered = c.Answered, c.Refused, c.Unanswered
	g.state.Count(o)
}
