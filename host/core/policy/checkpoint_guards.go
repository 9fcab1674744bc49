package policy

import (
	"maps"
	"slices"
	"time"
)

// savedGuard is the state of a guard in a checkpoint. Connections under a policy that is in force are counted anew after a
// restart, and so is a baseline that has not ended: its policy is not in force before.
type savedGuard struct {
	Policy        string        `json:"policy"`
	Revision      string        `json:"revision"`
	FailedPercent int           `json:"failedPercent"`
	Window        time.Duration `json:"window"` // nanoseconds
	FallenBack    bool          `json:"fallenBack,omitempty"`
	Since         int64         `json:"since"`
	Baseline      GuardCounts   `json:"baseline"`
	Recent        GuardCounts   `json:"recent"`
}

// valid reports whether a guard can have been in this state.
func (g *savedGuard) valid() bool {
	return g.Revision != "" && g.Window > 0 && g.Baseline.Connections >= minBaseline && g.Baseline.Failed <= g.Baseline.Connections && g.Recent.Failed <= g.Recent.Connections
}

func (e *Evaluator) saveGuards() (out []savedGuard) {
	for _, name := range slices.Sorted(maps.Keys(e.Guards)) {
		s := e.Guards[name]
		if s.Phase == GuardBaseline {
			continue
		}
		g := savedGuard{Policy: name, Revision: s.revision, FailedPercent: s.guard.FailedPercent, Window: s.guard.Window,
			FallenBack: s.Phase == GuardFallenBack, Since: s.Since, Baseline: s.Baseline}
		if g.FallenBack {
			g.Recent = s.Recent
		}
		out = append(out, g)
	}
	return out
}

func (g *savedGuard) restore(move func(ms int64) int64) *GuardState {
	s := &GuardState{guard: Guard{g.FailedPercent, g.Window}, revision: g.Revision, Phase: GuardInForce, Since: move(g.Since), Baseline: g.Baseline, Recent: g.Recent}
	if g.FallenBack {
		s.Phase = GuardFallenBack
	} else {
		s.Recent = GuardCounts{}
	}
	return s
}
