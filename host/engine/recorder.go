package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Recorder receives what the planner is given, in this order, at times of the planner's clock. Its methods are called from the
// engine's loop and must not block. They may retain their arguments, which nobody modifies.
type Recorder interface {
	// OnChanges receives the changes of a step; the time is zero until the initial state is complete.
	OnChanges(at time.Time, changes []model.Change)
	// OnOutcomes receives what happens to the outcomes of connections.
	OnOutcomes(OutcomeReading)
	// OnConnections receives a count of open connections; nil: they are not counted any more.
	OnConnections(at time.Time, count map[model.EndpointKey]uint32)
}

// OutcomeReading is what happens to the outcomes of connections.
type OutcomeReading struct {
	Stage    Stage
	At       time.Time
	Interval time.Duration                                 // of CountersRead: to the next reading
	Counters map[model.EndpointKey]backend.OutcomeCounters // of CountersRead
}

// Stage is what an OutcomeReading says.
type Stage uint8

// The stages.
const (
	CountersRead    Stage = iota
	CountingBegun         // again: the counters start from zero
	CountingStopped       // nothing needs outcomes any more
	CountersRebased       // another data plane counts from now on
)

// record passes a reading to the recorder.
func (e *Engine) record(r OutcomeReading) {
	if e.Recorder == nil {
		return
	}
	if r.At.IsZero() {
		r.At = e.planNow()
	}
	e.Recorder.OnOutcomes(r)
}
