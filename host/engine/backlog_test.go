package engine

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// TestBacklogIsReported, of changes that arrive together and of what a step leaves.
func TestBacklogIsReported(t *testing.T) {
	pending := 0
	o := Observers{&BacklogObserver{Pending: func() { pending++ }}}
	o.OnEnqueue(make([]model.Change, maxIntake), time.Time{})
	o.OnPlan(&PlannedStep{Result: &planner.Result{}})
	if pending != 0 {
		t.Errorf("%d reports of a backlog without one", pending)
	}
	o.OnEnqueue(make([]model.Change, maxIntake+1), time.Time{})
	o.OnPlan(&PlannedStep{Result: &planner.Result{Remaining: 1}})
	if pending != 2 {
		t.Errorf("%d reports of a backlog, want 2", pending)
	}
}
