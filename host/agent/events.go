package agent

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// eventRecorder records Events on Services whose policy failed, whose address and port belong to another Service, of which
// something is left out, or that cannot be programmed.
type eventRecorder struct {
	engine.Observers // none: the other methods do nothing
	warn             func(service model.Name, reason, note string)
}

// OnPlan implements engine.Observer.
func (r eventRecorder) OnPlan(p *engine.PlannedStep) {
	for _, err := range p.Result.Errors {
		var failed *planner.ServiceError
		if errors.As(err, &failed) {
			r.warn(failed.Service, kube.ReasonFailedToEvaluatePolicy, err.Error())
		}
	}
	for _, d := range p.Result.NewConflicts {
		r.warn(d.Owner.Service, kube.ReasonFrontendConflict, d.String())
	}
	for _, d := range p.Result.NewlyLimited {
		r.warn(d.Owner.Service, kube.ReasonServiceLimited, d.String())
	}
}

// OnApply implements engine.Observer.
func (r eventRecorder) OnApply(a *engine.ApplyResult) {
	for _, failed := range a.NewlyFailed {
		r.warn(failed.Service, kube.ReasonFrontendNotProgrammed, failed.Error())
	}
}
