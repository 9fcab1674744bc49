package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// choicePlanner returns a planner of n Services in two namespaces, one of which may choose policies. The policies light, heavy
// and bound give all endpoints the weight 2, 7 and 5.
func choicePlanner(n int) (*Planner, *weightPlugin, Settings) {
	s, plugin := testSettings(), &weightPlugin{}
	weighted := func(name string, weight int) *policy.Policy {
		return &policy.Policy{Name: name, Steps: []policy.Step{{Plugin: "weight", Settings: fmt.Sprintf(`{"weight":%d}`, weight)}}}
	}
	s.Policies = &policy.Set{
		Policies: map[string]*policy.Policy{"light": weighted("light", 2), "heavy": weighted("heavy", 7), "bound": weighted("bound", 5)},
		Allow:    []policy.Allow{{Namespaces: []string{"tenant"}, Policies: []string{"light", "heavy"}}}, Default: "bound",
	}
	p := New(s, func(string) (policy.Plugin, error) { return plugin, nil })
	changes := manyServices(n, 2)
	for i := range changes {
		c := &changes[i]
		if c.Service == nil && c.Slice == nil {
			continue
		}
		if i/2%2 == 0 { // each Service and its slice
			c.Name.Namespace = "tenant"
		} else {
			c.Name.Namespace = "other"
		}
		if c.Service != nil {
			c.Service.Name = c.Name
		}
		if c.Slice != nil {
			c.Slice.Service.Namespace, c.Slice.Name = c.Name.Namespace, c.Name
		}
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	return p, plugin, s
}

// choose sets the annotation of a Service that names its policy.
func choose(p *Planner, name model.Name, chosen string) model.Change {
	svc := *p.cluster.Services[name]
	svc.Policy = chosen
	return model.Change{Kind: model.ServiceKind, Name: name, Service: &svc}
}

func TestErrorsOfAnnotationsAreReportedOnce(t *testing.T) {
	p, _, s := choicePlanner(4)
	var name, foreign model.Name
	for _, n := range p.ServiceNames() {
		if n.Namespace == "tenant" {
			name = n
		} else {
			foreign = n
		}
	}
	now := time.Unix(1000, 0)
	planned := func(what string, reported string, choices [tally.ChoiceNotAllowed + 1]int, weight uint16) {
		t.Helper()
		now = now.Add(time.Second)
		r := p.PlanNow(now)
		text := ""
		for _, err := range r.ChoiceErrors {
			text += err.Error()
		}
		if (text == "") != (reported == "") || !strings.Contains(text, reported) || r.Totals.Choices != choices || len(r.Errors) > 0 || r.Totals.Failing > 0 {
			t.Fatalf("%s: %q, %v, totals %v", what, text, r.Errors, r.Totals.Choices)
		}
		if got := firstWeight(t, p, name); got != weight {
			t.Fatalf("%s: weight %d, want %d", what, got, weight)
		}
	}
	step := func(annotation, reported string, choices [tally.ChoiceNotAllowed + 1]int, weight uint16) {
		t.Helper()
		p.Apply([]model.Change{choose(p, name, annotation)})
		planned(annotation, reported, choices, weight)
	}
	none, inForce := [tally.ChoiceNotAllowed + 1]int{}, [tally.ChoiceNotAllowed + 1]int{tally.ChoiceInForce: 1}
	notFound, notAllowed := [tally.ChoiceNotAllowed + 1]int{tally.ChoiceNotFound: 1}, [tally.ChoiceNotAllowed + 1]int{tally.ChoiceNotAllowed: 1}
	step("hevy", "what applies without", notFound, 5)
	step("heavy", "", inForce, 7)
	step("hevy", "policy heavy, which it has chosen before", notFound, 7)
	p.Apply([]model.Change{choose(p, name, "hevy")})
	planned("the same error", "", notFound, 7)
	step("bound", "may not choose", notAllowed, 7)
	step("light", "", inForce, 2)
	step("bound", "policy light, which", notAllowed, 2)

	// What may not be chosen any more is not in force, and is again when it may.
	withdrawn := s
	withdrawn.Policies = &policy.Set{Policies: s.Policies.Policies, Default: "bound"}
	p.Configure(withdrawn)
	planned("withdrawn", "what applies without", notAllowed, 5)
	p.Configure(s)
	planned("allowed again", "policy light, which", notAllowed, 2)
	step("", "", none, 5)
	step("hevy", "what applies without", notFound, 5)
	p.Apply([]model.Change{choose(p, foreign, "light")})
	planned("another namespace", "Services of namespace other may not choose", [tally.ChoiceNotAllowed + 1]int{tally.ChoiceNotFound: 1, tally.ChoiceNotAllowed: 1}, 5)
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: foreign}, choose(p, name, "")})
	planned("deleted and removed", "", none, 5)
}

// TestAnnotationsOfATenantCostOthersNothing: all Services of a namespace change their annotations again and again.
func TestAnnotationsOfATenantCostOthersNothing(t *testing.T) {
	services := 10_000
	if testing.Short() {
		services = 1000
	}
	p, plugin, _ := choicePlanner(2 * services)
	var names []model.Name
	for _, n := range p.ServiceNames() {
		if n.Namespace == "tenant" {
			names = append(names, n)
		}
	}
	now := time.Unix(1001, 0)
	for round, annotation := range []string{"heavy", "typo", "typo", "bound", "light", "typo", ""} {
		now = now.Add(time.Second)
		plugin.asked = nil
		var changes []model.Change
		for _, n := range names {
			changes = append(changes, choose(p, n, annotation))
		}
		p.Apply(changes)
		r := p.PlanNow(now)
		if r.Planned != len(names) || len(r.ChoiceErrors) > len(names) {
			t.Errorf("round %d: %d Services planned, %d errors; the namespace has %d", round, r.Planned, len(r.ChoiceErrors), len(names))
		}
		// A policy that stays in force, as it is, calls no plugin.
		if calls := len(plugin.asked); annotation == "typo" && calls > 0 || calls > 2*len(names) {
			t.Errorf("round %d: %d calls", round, calls)
		}
	}
}
