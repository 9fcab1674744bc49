package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Planned is a step of the plan that is not in the data plane yet.
type Planned struct {
	At   time.Time // when it was begun
	Took time.Duration
	Step *plan.Step // not to be changed or kept
	// Degraded is how many frontends the data plane cannot hold as they are wanted.
	Degraded int
}

// Programmed is what came of a step.
type Programmed struct {
	At time.Time // when it ended
	// Tried: the backend was called. Otherwise the plan had not changed, or a failed call is to be repeated later.
	Tried bool
	// Whole: it had to find out itself what differs. Cleanup: the plan had not changed, and only leftovers were to go.
	Whole, Cleanup bool
	Took           time.Duration
	Report         backend.Report
	Err            error
	// Held: the data plane holds all that was planned until now, but for so many frontends that are Stuck.
	Held  bool
	Stuck int
}

// Note is something beside plan and data plane that was done.
type Note struct {
	Kind   NoteKind
	Family model.Family // of StaleFlowsForgotten
	At     time.Time
	Took   time.Duration
	Count  int // connections, flows or changes
	Err    error
}

// NoteKind says what was done.
type NoteKind uint8

// What may be noted.
const (
	CheckpointSaved     NoteKind = iota // or found to be up to date
	ConnectionsReset                    // of one member whose deadline had passed
	StaleFlowsForgotten                 // of one IP family
	DriftNoticed                        // somebody else wrote; Count: changes
)

// Observers are told one after another; none is nobody.
type Observers []Observer

// Queued implements Observer.
func (o Observers) Queued(changes []model.Change, at time.Time) {
	for _, each := range o {
		each.Queued(changes, at)
	}
}

// Taken implements Observer.
func (o Observers) Taken() {
	for _, each := range o {
		each.Taken()
	}
}

// Planned implements Observer.
func (o Observers) Planned(p *Planned) {
	for _, each := range o {
		each.Planned(p)
	}
}

// Programmed implements Observer.
func (o Observers) Programmed(p *Programmed) {
	for _, each := range o {
		each.Programmed(p)
	}
}

// Noted implements Observer.
func (o Observers) Noted(n Note) {
	for _, each := range o {
		each.Noted(n)
	}
}
