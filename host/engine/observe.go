package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// Observer is notified of what the engine does, for health checks and metrics. Its methods are called from the engine's
// loop (OnEnqueue also from the source's goroutine). They must not block and must not retain their arguments.
type Observer interface {
	// OnEnqueue is called when changes arrive from the source.
	OnEnqueue(changes []model.Change, at time.Time)
	// OnDequeue is called when all queued changes have been taken and become part of the next step or, if they are many, of the
	// next steps.
	OnDequeue()
	// OnPlan is called when a step has been planned, before any of it is programmed.
	OnPlan(*PlannedStep)
	// OnApply is called after each OnPlan with the result.
	OnApply(*ApplyResult)
	// OnEvent is called for everything else.
	OnEvent(Event)
}

// PlannedStep is a step of the plan before it is programmed.
type PlannedStep struct {
	At       time.Time // start of planning
	Duration time.Duration
	Result   *planner.Result // read-only; must not be retained
	Degraded int             // frontends that the backend cannot represent as planned
}

// ApplyResult is the result of programming a step.
type ApplyResult struct {
	At time.Time // when it ended
	// Attempted reports whether the backend was called. It is not if the plan has not changed, or while a retry waits.
	Attempted bool
	// FullSync reports whether the backend compared the whole plan with the data plane. Cleanup reports whether the plan
	// had not changed and only leftovers of an earlier Apply were removed.
	FullSync, Cleanup bool
	Duration          time.Duration
	Report            backend.Report
	Err               error
	// Synced reports whether the data plane matches the plan, except for Unprogrammed frontends (backend.PartialError).
	Synced       bool
	Unprogrammed int
	// NewlyFailed are frontends that cannot be programmed and have not been reported while that lasts, at most 20.
	NewlyFailed []*planner.ServiceError
}

// Event is something that the engine did outside of planning and programming.
type Event struct {
	Kind     EventKind
	Family   model.Family // of StaleFlowsDeleted
	At       time.Time
	Duration time.Duration
	Count    int // connections, flows or changes
	// Omitted: of CheckpointSaved: states of endpoints beyond the limit; of OutcomesRead: endpoints beyond the limit of the data
	// plane; of connections that were reset: plan.ResetCount.Uncertain; of UnrepliedDeleted: endpoints of frontends beyond the
	// limit; of StaleFlowsDeleted: frontends beyond the limit.
	Omitted int
	// Objects and Processes are, with DriftDetected, the first objects that were changed and the processes that did, as far as
	// known.
	Objects, Processes string
	Err                error
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	CheckpointSaved   EventKind = iota // or found to be up to date
	ConnectionsReset                   // connections to endpoints whose drain deadline has passed
	ConnectionsShed                    // connections that a policy sheds, in one step
	UnrepliedDeleted                   // connections without an answer to endpoints that get no new ones, in Duration of CPU time
	StaleFlowsDeleted                  // stale UDP flows of one IP family
	UDPFlowsKept                       // Count UDP flows to endpoints that do not serve, which their Service asks to be kept
	DriftDetected                      // another process changed the data plane; Count: changes
	// OutcomesRead: of Count endpoints, in Duration of CPU time, or failed. Without At, nothing needs outcomes any more.
	OutcomesRead
	// ConnectionsCounted: the open connections to Count endpoints, in Duration of CPU time. Without At, nothing needs them any
	// more.
	ConnectionsCounted
)

// Observers notifies each of its elements in order. It may be empty.
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
func (o Observers) OnApply(r *ApplyResult) {
	for _, each := range o {
		each.OnApply(r)
	}
}

// OnEvent implements Observer.
func (o Observers) OnEvent(e Event) {
	for _, each := range o {
		each.OnEvent(e)
	}
}
