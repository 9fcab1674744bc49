package planner

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// TestConnectionsOfPoliciesEqualAListOfReadings compares the counts by policy with a list, while Services change their policy,
// the plugin is reloaded, and Services come and go.
func TestConnectionsOfPoliciesEqualAListOfReadings(t *testing.T) {
	for seed := range 20 {
		r := rand.New(rand.NewPCG(uint64(seed), 13))
		plugin := &zonePlugin{}
		settings := testSettings()
		settings.CountAll = true
		p := New(settings, func(string) (policy.Plugin, error) { return plugin, nil })
		p.Apply(manyServices(6, 2))
		now, services := time.Unix(1000, 0), map[model.Name]*model.Service{}
		maps.Copy(services, p.cluster.Services)
		got, want := map[string]tally.Connections{}, map[string]tally.Connections{}
		plan := func() {
			t.Helper()
			now = now.Add(time.Second)
			res := p.PlanNow(now)
			if res.PolicyConnections == nil {
				return
			}
			all := map[string]tally.Connections{}
			for _, c := range res.PolicyConnections {
				all[c.Policy+" "+c.Revision] = c.Connections
			}
			for k, before := range got {
				if after := all[k]; after.Answered < before.Answered || after.Refused < before.Refused || after.Unanswered < before.Unanswered {
					t.Fatalf("seed %d: %q: %+v after %+v", seed, k, after, before)
				}
			}
			got = all
		}
		plan()
		names := slices.SortedFunc(maps.Keys(services), model.Name.Compare)
		for step := range 200 {
			switch name := names[r.IntN(len(names))]; r.IntN(5) {
			case 0: // another policy
				svc := *services[name]
				if svc.Labels = nil; r.IntN(2) == 0 {
					svc.Labels = map[string]string{"zoned": ""}
				}
				services[name] = &svc
				p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: &svc}})
				plan()
			case 1: // gone, or there again
				svc := services[name]
				if p.cluster.Services[name] != nil {
					svc = nil
				}
				p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}})
				plan()
			case 2:
				plugin.Code = fmt.Sprint(r.IntN(3))
				p.PluginsReloaded()
				plan()
			default:
				var changes []outcomes.Change
				for key, of := range p.outcomes.Services() {
					c := outcomes.Change{Key: key, Answered: uint64(r.IntN(5)), Refused: uint64(r.IntN(3)), Unanswered: uint64(r.IntN(2))}
					changes = append(changes, c)
					seen := map[string]bool{}
					for _, name := range of {
						k := " "
						if q, _ := settings.Policies.For(p.cluster.Services[name], "", ""); q != nil {
							k = q.Name + " " + p.evaluator.Revision(q)
						}
						if !seen[k] {
							seen[k] = true
							sum := want[k]
							sum.Add(&c)
							want[k] = sum
						}
					}
				}
				p.AddOutcomes(time.Unix(1000, 0), time.Second, changes)
				plan()
			}
			for k, v := range want {
				if got[k] != v {
					t.Fatalf("seed %d, step %d: %q: %+v, want %+v", seed, step, k, got[k], v)
				}
			}
		}
		if len(want) < 4 {
			t.Errorf("seed %d: only %d policies and revisions", seed, len(want))
		}
	}
}

// TestReadingsWithoutPoliciesReportNothing: what is not counted costs nothing.
func TestReadingsWithoutPoliciesReportNothing(t *testing.T) {
	p := countedPlanner(&needyPlugin{}, nil)
	p.PlanNow(time.Unix(1000, 0))
	p.AddOutcomes(time.Unix(1000, 0), time.Second, []outcomes.Change{{Key: countedKey(0), Answered: 5}})
	if r := p.PlanNow(time.Unix(1001, 0)); r.PolicyConnections != nil {
		t.Errorf("%+v", r.PolicyConnections)
	}
}
