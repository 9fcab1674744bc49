package agent

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// eventRecorder records Events of Services that do not get what they ask for.
type eventRecorder struct {
	engine.Observers // nobody
	events           *kube.Recorder
}

// Planned implements engine.Observer.
func (r eventRecorder) Planned(p *engine.PlannedStep) {
	for _, err := range p.Result.Errors {
		var of *planner.ServiceError
		if errors.As(err, &of) {
			r.events.SampledServiceWarning(of.Service, kube.ReasonFailedToEvaluatePolicy, err.Error())
		}
	}
	for _, d := range p.Result.NewConflicts {
		r.events.SampledServiceWarning(d.Owner.Service, kube.ReasonFrontendConflict, d.String())
	}
}
