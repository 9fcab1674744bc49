package planner

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// weightPlugin gives the first endpoint N times the share of each other, with settings {"weight": N} and N up to 99, and records
// which Services ask.
type weightPlugin struct {
	policytest.Plugin
	asked []string
}

func (p *weightPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	p.asked = append(p.asked, req.Service)
	weight := uint32(1)
	if text := req.Settings.Text; text != "" {
		if _, err := fmt.Sscanf(text, `{"weight":%d}`, &weight); err != nil || weight > 99 {
			return fmt.Errorf("%w: %s", abi.ErrSettings, text)
		}
	}
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	resp.Results[0].Value = weight * abi.One
	return nil
}

func (*weightPlugin) Counters() []string { return nil }
func (*weightPlugin) Role() abi.Role     { return abi.RoleLocality }

// settingsPlanner returns a planner of 20 Services, those with an even number in the namespace of a binding with settings.
func settingsPlanner(plugin *weightPlugin) (*Planner, Settings) {
	s := testSettings()
	weighted := &policy.Policy{Name: "weighted", Steps: []policy.Step{{Plugin: "weight", Settings: `{"weight":2}`, ServiceSettings: []string{"weight"}}}}
	s.Policies = &policy.Set{Policies: map[string]*policy.Policy{"weighted": weighted}, Default: "weighted"}
	p := New(s, func(string) (policy.Plugin, error) { return plugin, nil })
	p.Apply(append(manyServices(20, 2), model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	return p, s
}

// firstWeight returns the weight of the first endpoint of a Service.
func firstWeight(t *testing.T, p *Planner, name model.Name) uint16 {
	t.Helper()
	x, err := p.Explain(name)
	if err != nil || len(x.Decisions) == 0 {
		t.Fatalf("%+v, %v", x, err)
	}
	return x.Decisions[0].Cluster.Weights[0]
}

// annotate sets the annotation of a Service.
func annotate(p *Planner, name model.Name, text string) model.Change {
	svc := *p.cluster.Services[name]
	svc.Settings = text
	return model.Change{Kind: model.ServiceKind, Name: name, Service: &svc}
}

func TestErrorsOfServiceSettingsAreReportedOnce(t *testing.T) {
	p, _ := settingsPlanner(&weightPlugin{})
	name := p.ServiceNames()[3]
	now := time.Unix(1000, 0)
	step := func(text string, reported, own, refused int, weight uint16) {
		t.Helper()
		now = now.Add(time.Second)
		p.Apply([]model.Change{annotate(p, name, text)})
		r := p.PlanNow(now)
		if len(r.SettingsErrors) != reported || r.Totals.OwnSettings != own || r.Totals.RefusedSettings != refused || len(r.Errors) > 0 {
			t.Fatalf("%s: errors %v, %v, %d in force, %d refused", text, r.SettingsErrors, r.Errors, r.Totals.OwnSettings, r.Totals.RefusedSettings)
		}
		if o := p.Overview(""); o[3].Refused != (refused > 0) {
			t.Errorf("%s: %+v", text, o[3])
		}
		if reported > 0 && (r.SettingsErrors[0].Service != name || !strings.Contains(r.SettingsErrors[0].Error(), name.String())) {
			t.Errorf("%s: %v", text, r.SettingsErrors[0])
		}
		if got := firstWeight(t, p, name); got != weight {
			t.Errorf("%s: weight %d, want %d", text, got, weight)
		}
	}
	step(`{"weight": {"weight": 7}}`, 0, 1, 0, 7)
	step(`{"weight": {"weight": 100}}`, 1, 0, 1, 7)
	step(`{"weight": {"weight": 100}} `, 0, 0, 1, 7) // the same error
	step(`{"weight": {"weight": 101}}`, 1, 0, 1, 7)
	step(`{`, 1, 0, 1, 7)
	step(`{"weight": {"weight": 8}}`, 0, 1, 0, 8)
	step(``, 0, 0, 0, 2)
	step(`{`, 1, 0, 1, 2)
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name}})
	if r := p.PlanNow(now); r.Totals.RefusedSettings != 0 {
		t.Errorf("deleted: %+v", r.Totals)
	}
}

func TestSettingsOfAServiceWithoutPolicyAreAnError(t *testing.T) {
	p, s := settingsPlanner(&weightPlugin{})
	s.Policies = &policy.Set{}
	p.Configure(s)
	p.Apply([]model.Change{annotate(p, p.ServiceNames()[0], "{}")})
	r := p.PlanNow(time.Unix(1001, 0))
	if len(r.SettingsErrors) != 1 || !strings.Contains(r.SettingsErrors[0].Error(), "the Service has no policy") {
		t.Error(r.SettingsErrors)
	}
}

func TestNewSettingsAskOnlyTheirServices(t *testing.T) {
	plugin := &weightPlugin{}
	p, s := settingsPlanner(plugin)
	names := p.ServiceNames()
	now := time.Unix(1001, 0)
	asked := func(what string, want int) {
		t.Helper()
		plugin.asked = nil
		now = now.Add(time.Second)
		p.PlanNow(now)
		if len(plugin.asked) != want {
			t.Errorf("%s: %d calls, for %v; want %d", what, len(plugin.asked), plugin.asked, want)
		}
	}
	p.Apply([]model.Change{annotate(p, names[3], `{"weight": {"weight": 7}}`)})
	asked("settings of one Service", 1)

	weighted := *s.Policies.Policies["weighted"]
	bound, err := weighted.WithSettings(map[string]string{"weight": `{"weight":3}`})
	if err != nil {
		t.Fatal(err)
	}
	reload := func(applied *policy.Policy) {
		again := s
		again.Policies = &policy.Set{Policies: s.Policies.Policies, Default: "weighted", Bindings: []policy.Binding{
			{Namespaces: []string{names[5].Namespace}, Selector: policy.Selector{{Key: "no", Op: policy.Exists}}, Policy: "weighted", Applied: applied}}}
		p.Configure(again)
		p.PluginsReloaded()
	}
	reload(bound)
	asked("a binding without Services", 0)
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: names[5], Service: func() *model.Service {
		svc := *p.cluster.Services[names[5]]
		svc.Labels = map[string]string{"no": ""}
		return &svc
	}()}})
	asked("one Service is bound", 1)
	again, _ := weighted.WithSettings(map[string]string{"weight": `{"weight":3}`})
	reload(again)
	asked("the same configuration is read again", 0)
	other, _ := weighted.WithSettings(map[string]string{"weight": `{"weight":4}`})
	reload(other)
	asked("other settings of the binding", 1)
	if got := firstWeight(t, p, names[5]); got != 4 {
		t.Errorf("weight %d", got)
	}
}
