package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// PlannedStep is a step of the plan that is not in the data plane yet.
type PlannedStep struct {
	At       time.Time // when it was begun
	Duration time.Duration
	Step     *plan.Step // not to be changed or kept
	// Degraded is how many frontends the data plane cannot hold as they are wanted.
	Degraded int
}

// ApplyResult is what came of a step.
type ApplyResult struct {
	At time.Time // when it ended
	// Attempted: the backend was called. Otherwise the plan had not changed, or a failed call is to be repeated later.
	Attempted bool
	// FullSync: it had to find out itself what differs. Cleanup: the plan had not changed, and only leftovers were to go.
	FullSync, Cleanup bool
	Duration          time.Duration
	Report            backend.Report
	Err               error
	// Synced: the data plane holds all that was planned until now, but for so many frontends that are Stuck.
	Synced       bool
	Unprogrammed int
}

// Event is something beside plan and data plane that was done.
type Event struct {
	Kind     EventKind
	Family   model.Family // of StaleFlowsForgotten
	At       time.Time
	Duration time.Duration
	Count    int // connections, flows or changes
	Err      error
}

// EventKind says what was done.
type EventKind uint8

// What may be noted.
const (
	CheckpointSaved   EventKind = iota // or found to be up to date
	ConnectionsReset                   // of one member whose deadline had passed
	StaleFlowsDeleted                  // of one IP family
	DriftDetected                      // somebody else wrote; Count: changes
)

// Observers are told one after another; none is nobody.
type Observers []Observer

// OnEnqueue implements Observer.
func (o Observers) OnEnqueue(changes []model.Change, at time.Time) {
	for _, each := range o {
		each.OnEnqueue(changes, at)
	}
}

// OnDequeue implements Observer.
func (o Observers) OnDequeue() {
	for _, each := range o {
		each.OnDequeue()
	}
}

// OnPlan implements Observer.
func (o Observers) OnPlan(p *PlannedStep) {
	for _, each := range o {
		each.OnPlan(p)
	}
}

// OnApply implements Observer.
func (o Observers) OnApply(p *ApplyResult) {
	for _, each := range o {
		each.OnApply(p)
	}
}

// OnEvent implements Observer.
func (o Observers) OnEvent(n Event) {
	for _, each := range o {
		each.OnEvent(n)
	}
}
