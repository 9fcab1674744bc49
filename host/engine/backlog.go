package engine

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// BacklogObserver is an Observer that calls Pending while changes wait for the steps to come, at least once for each step.
type BacklogObserver struct {
	Observers // none: the other methods do nothing
	Pending   func()
}

// OnEnqueue implements Observer. A step takes maxIntake changes, so the others wait.
func (o *BacklogObserver) OnEnqueue(changes []model.Change, _ time.Time) {
	if len(changes) > maxIntake {
		o.Pending()
	}
}

// OnPlan implements Observer.
func (o *BacklogObserver) OnPlan(s *PlannedStep) {
	if s.Result.Remaining > 0 {
		o.Pending()
	}
}
