package engine

import (
	"time"

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
	Report         Report
	Err            error
	// Held: the data plane holds all that was planned until now.
	Held bool
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

// nobody is the Observer of an engine without one.
type nobody struct{}

func (nobody) Queued([]model.Change, time.Time) {}
func (nobody) Taken()                           {}
func (nobody) Planned(*Planned)                 {}
func (nobody) Programmed(*Programmed)           {}
func (nobody) Noted(Note)                       {}
