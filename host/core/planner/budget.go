package planner

import (
	"time"
)

// pace is how much a Plan does.
type pace struct {
	inBatches bool
	stepCost  int  // see AdaptStep
	full      bool // the last Plan has done as much as it may
}

// callCost is the cost of calling a plugin and recording its answer, requestCost that of building the requests of a chain and
// comparing them with those that have been answered, for each pool and for each of its endpoints.
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
func (p *pace) AdaptStep(took time.Duration) {
	switch {
	case !p.full: // its duration says nothing about larger ones
	case took > targetStepTime:
		p.stepCost = max(p.stepCost*3/4, minStepCost)
	case took < targetStepTime/2:
		p.stepCost = min(p.stepCost*5/4, maxStepCost)
	}
}

// PlanInBatches bounds the duration of a Plan, see AdaptStep. The first one does everything. When Services remain,
// Result.RequeueAt is now.
func (p *pace) PlanInBatches() { p.inBatches = true }
