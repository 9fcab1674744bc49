package planner

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// The cost of planning in units of about 0.15 µs, measured on one core: looking at an endpoint or an EndpointSlice is one, building and
// comparing a frontend some 8. The backend says what programming costs, see plan.Caps.Step.
const (
	lookCost     = 1
	frontendCost = 8
)

// callCost is the cost of calling a plugin and recording its answer, requestCost that of building the requests of a chain and comparing
// them with those that have been answered, for each pool and for each of its endpoints.
const (
	callCost        = 100
	requestCost     = 60
	requestCostEach = 6
)

// A Plan does about Planner.stepCost of work, which follows the duration of steps, see AdaptStep.
const (
	minStepCost = 2_000
	maxStepCost = 10_000
)

// targetStepTime is how long a step (planning and programming) may take that does as much as a Plan allows. A change that arrives
// meanwhile waits for its end, and is then programmed first.
const targetStepTime = 1500 * time.Microsecond

// AdaptStep adapts how much a Plan does to the duration of the last step, planning and programming.
func (p *Planner) AdaptStep(took time.Duration) {
	switch {
	case !p.full: // its duration says nothing about larger ones
	case took > targetStepTime:
		p.stepCost = max(p.stepCost*3/4, minStepCost)
	case took < targetStepTime/2:
		p.stepCost = min(p.stepCost*5/4, maxStepCost)
	}
}

// PlanInBatches bounds the duration of a Plan, see AdaptStep. The first one does everything. When Services remain, Result.RequeueAt is
// now.
func (p *Planner) PlanInBatches() { p.inBatches = true }

// budget is the work that may still be done; nil is unlimited.
type budget struct {
	left int
	turn int // how much one Service may use before it is another one's turn
}

func (b *budget) spent() bool { return b != nil && b.left <= 0 }

func (b *budget) spend(cost int) {
	if b != nil {
		b.left -= cost
	}
}

// add adds to the budget, and returns it.
func (b *budget) add(cost int) *budget {
	if b != nil {
		b.left += cost
	}
	return b
}

// begin returns the budget of the turn of a Service, for end to take off. It may be more than what is left: the rest of a Plan would
// otherwise go to Services that it does not suffice for.
func (b *budget) begin() *budget {
	if b == nil {
		return nil
	}
	return &budget{left: b.turn}
}

func (b *budget) end(turn *budget) {
	if b != nil {
		b.left -= b.used(turn)
	}
}

// used returns what a turn has used.
func (b *budget) used(turn *budget) int {
	if b == nil {
		return 0
	}
	return b.turn - turn.left
}

// equal reports whether two frontends are equal, and spends the cost of comparing them.
func (b *budget) equal(f, g *plan.Frontend) bool {
	b.spend(frontendCost + (len(f.Pool.Endpoints)+len(f.SourceRanges))*lookCost)
	return f.Equal(g)
}
