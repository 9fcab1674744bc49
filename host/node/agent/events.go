package agent

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// eventRecorder records Events on Services whose policy or its shadow failed, whose annotations are not in force, whose address
// and port belong to another Service, of which something is left out, whose policy holds endpoints, or that cannot be programmed.
type eventRecorder struct {
	engine.Observers // none: the other methods do nothing
	warn             func(service model.Name, reason, note string)
	hold             func(*planner.HoldChange)
	node             func(warning bool, reason, note string)
}

// OnPlan implements engine.Observer.
func (r eventRecorder) OnPlan(p *engine.PlannedStep) {
	for _, err := range p.Result.Errors {
		var failed *planner.ServiceError
		if errors.As(err, &failed) {
			r.warn(failed.Service, kube.ReasonFailedToEvaluatePolicy, err.Error())
		}
	}
	for _, err := range p.Result.ShadowErrors {
		r.warn(err.Service, kube.ReasonFailedToEvaluateShadow, err.Error())
	}
	for _, err := range p.Result.ChoiceErrors {
		reason := kube.ReasonPolicyNotFound
		if err.NotAllowed {
			reason = kube.ReasonPolicyNotAllowed
		}
		r.warn(err.Service, reason, err.Error())
	}
	for _, err := range p.Result.SettingsErrors {
		r.warn(err.Service, kube.ReasonServiceSettingsRefused, err.Error())
	}
	for _, d := range p.Result.NewConflicts {
		r.warn(d.Owner.Service, kube.ReasonFrontendConflict, d.String())
	}
	for _, d := range p.Result.NewlyLimited {
		r.warn(d.Owner.Service, kube.ReasonServiceLimited, d.String())
	}
	for i := range p.Result.ShedsBounded {
		r.warn(p.Result.ShedsBounded[i].Service, kube.ReasonShedBounded, p.Result.ShedsBounded[i].String())
	}
	for i := range p.Result.Guards {
		if g := &p.Result.Guards[i]; g.Phase == policy.GuardFallenBack {
			r.node(true, kube.ReasonPolicyFellBack, g.Text)
		}
	}
	for i := range p.Result.Holds {
		r.hold(&p.Result.Holds[i])
	}
}

// OnApply implements engine.Observer.
func (r eventRecorder) OnApply(a *engine.ApplyResult) {
	for _, failed := range a.NewlyFailed {
		r.warn(failed.Service, kube.ReasonFrontendNotProgrammed, failed.Error())
	}
}

// recordHold records the beginning of a panic hold as a warning, and its end as a normal Event. Other nodes see the same if
// endpoints of a cluster pool are held; those of a local pool are only on this node.
func recordHold(events *kube.EventRecorder, c *planner.HoldChange) {
	switch {
	case !c.Held:
		events.ServiceNormal(c.Service, kube.ReasonPanicHoldEnded, c.String(), c.Cluster)
	case c.Cluster:
		events.SampledServiceWarning(c.Service, kube.ReasonPanicHold, c.String())
	default:
		events.ServiceWarning(c.Service, kube.ReasonPanicHold, c.String())
	}
}
