package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

func TestFailedPoliciesAndConflictsBecomeEvents(t *testing.T) {
	a, b := model.Name{Namespace: "shop", Name: "a"}, model.Name{Namespace: "shop", Name: "b"}
	var got []string
	// Called as the engine calls it: an embedded engine.Observers has all methods.
	var o engine.Observer = eventRecorder{warn: func(s model.Name, reason, _ string) { got = append(got, s.String()+" "+reason) },
		hold: func(c *planner.HoldChange) { got = append(got, c.Service.String()+" hold") },
		node: func(warning bool, reason, note string) { got = append(got, fmt.Sprint(warning, reason, note)) }}
	o.OnPlan(&engine.PlannedStep{Result: &planner.Result{
		Errors:         []error{&planner.ServiceError{Service: a, Err: errors.New("out of fuel")}, errors.New("not about a Service")},
		ShadowErrors:   []*planner.ServiceError{{Service: b, Err: errors.New("trap")}},
		ChoiceErrors:   []*policy.ChoiceError{{Service: a, Policy: "x"}, {Service: b, Policy: "y", NotAllowed: true}},
		SettingsErrors: []*planner.ServiceError{{Service: b, Err: errors.New("refused")}},
		NewConflicts:   []plan.Degradation{{Owner: model.PortName{Service: b}}},
		NewlyLimited:   []plan.Degradation{{Owner: model.PortName{Service: a}}},
		Holds:          []planner.HoldChange{{Service: b, Held: true}},
		Guards: []planner.GuardChange{{Policy: "p", Phase: policy.GuardBaseline}, {Policy: "p", Phase: policy.GuardInForce, Blind: true},
			{Policy: "p", Phase: policy.GuardFallenBack, Text: "fell back"}},
	}})
	o.OnApply(&engine.ApplyResult{NewlyFailed: []*planner.ServiceError{{Service: b, Err: errors.New("no space")}}})
	if want := []string{"shop/a " + kube.ReasonFailedToEvaluatePolicy, "shop/b " + kube.ReasonFailedToEvaluateShadow, "shop/a " + kube.ReasonPolicyNotFound, "shop/b " + kube.ReasonPolicyNotAllowed, "shop/b " + kube.ReasonServiceSettingsRefused, "shop/b " + kube.ReasonFrontendConflict, "shop/a " + kube.ReasonServiceLimited,
		"true" + kube.ReasonPolicyFellBack + "fell back", "shop/b hold", "shop/b " + kube.ReasonFrontendNotProgrammed}; !slices.Equal(got, want) {
		t.Errorf("Events %q, want %q", got, want)
	}
}
