package planner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestTotalsEqualRecount also counts the plan's frontends one by one, and keeps the health checks that the steps
// reported, as a health server does.
func TestTotalsEqualRecount(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 5))
		settings := testSettings()
		settings.Policies.Policies["watch"] = &policy.Policy{Name: "watch", Shadow: []policy.Step{{Plugin: "by-zone"}}}
		settings.Policies.Default = "watch"
		p := New(settings, nativePlugins)
		p.Apply([]model.Change{{Kind: model.Synced}})
		now, reported := time.Unix(1_000_000, 0), map[model.Name]tally.HealthCheck{}
		for range 60 {
			c := randomChange(r)
			if c.Service != nil && c.Service.ExternalLocal {
				c.Service.HealthCheckNodePort = uint16(r.IntN(3)) * 1000
			}
			p.Apply([]model.Change{c})
			now = now.Add(time.Second)
			step := p.PlanNow(now)
			for _, h := range step.HealthChecks {
				if reported[h.Service] == h {
					t.Fatalf("seed %d: reported twice: %+v", seed, h)
				}
				if reported[h.Service] = h; h.Port == 0 {
					delete(reported, h.Service)
				}
			}
			scratch := New(settings, nativePlugins)
			scratch.Replace(p.cluster)
			scratch.evaluator.Node = p.evaluator.Node // what was last known of the Node outlasts it
			want := scratch.PlanNow(now)
			if !reflect.DeepEqual(step.Totals, want.Totals) {
				t.Fatalf("seed %d: running\n%+v\nfrom scratch\n%+v", seed, step.Totals, want.Totals)
			}
			all := map[model.Name]tally.HealthCheck{}
			for _, h := range want.HealthChecks {
				all[h.Service] = h
			}
			if !reflect.DeepEqual(reported, all) {
				t.Fatalf("seed %d: reported %v, from scratch %v", seed, reported, all)
			}
			var counted tally.ByFamily[tally.FamilyTotals]
			for k, f := range p.Current().Frontends {
				counted.At(k.Family()).Frontends[f.Kind]++
			}
			if got := len(p.Conflicts()); got != step.Totals.Conflicts {
				t.Fatalf("seed %d: %d conflicts, counted %d", seed, got, step.Totals.Conflicts)
			}
			for _, f := range []model.Family{model.IPv4, model.IPv6} {
				if a, b := counted.At(f).Frontends, step.Totals.Family.At(f).Frontends; a != b {
					t.Fatalf("seed %d: %s frontends %v, counted %v", seed, f, a, b)
				}
			}
		}
	}
}

// lb is a dual-stack load balancer Service of two ports with a health check port.
func lb(change func(*model.Service)) model.Change {
	n := model.Name{Namespace: "shop", Name: "lb"}
	s := &model.Service{
		Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd00:96::9")},
		ExternalLocal: true, HealthCheckNodePort: 31000,
		Ports: []model.ServicePort{
			{Name: "p0", Protocol: model.TCP, Port: 80, NodePort: 30080}, {Name: "p1", Protocol: model.TCP, Port: 81, NodePort: 30081}},
	}
	if change != nil {
		change(s)
	}
	return model.Change{Kind: model.ServiceKind, Name: n, Service: s}
}

// lbSlice returns a slice of lb with an endpoint on each node; a node with "!" has an unready one, with "~" a terminating one
// that serves.
func lbSlice(f model.Family, nodes ...string) model.Change {
	s := &model.EndpointSlice{
		Name: model.Name{Namespace: "shop", Name: "lb-" + f.String()}, Service: model.Name{Namespace: "shop", Name: "lb"}, Family: f,
		Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}, {Name: "p1", Protocol: model.TCP, Port: 8081}},
	}
	for i, n := range nodes {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)})
		if f == model.IPv6 {
			a = netip.MustParseAddr(fmt.Sprintf("fd00:244::%d", i+1))
		}
		e := model.SliceEndpoint{Addr: a, Node: n, Ready: true, Serving: true}
		switch n[0] {
		case '!':
			e.Node, e.Ready, e.Serving = n[1:], false, false
		case '~':
			e.Node, e.Ready, e.Terminating = n[1:], false, true
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s}
}

func TestHealthChecksCountReadyLocalAddressesOnce(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	step := func(changes ...model.Change) []tally.HealthCheck {
		p.Apply(changes)
		s := p.PlanNow(time.Unix(1000, 0))
		return s.HealthChecks
	}
	want := func(what string, got []tally.HealthCheck, local4, local6 int) {
		t.Helper()
		w := tally.HealthCheck{Service: model.Name{Namespace: "shop", Name: "lb"}, Port: 31000,
			Serves: tally.ByFamily[bool]{true, true}, Local: tally.ByFamily[int]{local4, local6}}
		if len(got) != 1 || got[0] != w {
			t.Fatalf("%s: %+v, want %+v", what, got, w)
		}
	}
	want("two ports, one count", step(model.Change{Kind: model.Synced}, lb(nil), lbSlice(model.IPv4, "n0", "n0", "n1")), 2, 0)
	want("each family by itself", step(lbSlice(model.IPv6, "n0")), 2, 1)
	want("neither not ready nor draining", step(lbSlice(model.IPv4, "n0", "!n0", "~n0")), 1, 1)
	if got := step(lbSlice(model.IPv4, "n0", "n1")); got != nil {
		t.Fatalf("reported although nothing changed: %+v", got)
	}
	want("only draining", step(lbSlice(model.IPv4, "~n0")), 0, 1)
	got := step(lb(func(s *model.Service) { s.HealthCheckNodePort = 0 }))
	if len(got) != 1 || got[0].Port != 0 || got[0].Service.Name != "lb" {
		t.Fatalf("without a port: %+v", got)
	}
	step(lb(nil))
	got = step(model.Change{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "lb"}})
	if len(got) != 1 || got[0].Port != 0 || got[0].Service.Name != "lb" {
		t.Fatalf("without the Service: %+v", got)
	}
}

func TestNodeStatusReportsEligibility(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	n0 := model.Name{Name: "n0"}
	for _, c := range []struct {
		what   string
		change model.Change
		want   bool
	}{
		{"no Node", model.Change{Kind: model.Synced}, false},
		{"another Node", model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n1"}, Node: &model.Node{Name: "n1"}}, false},
		{"the Node", model.Change{Kind: model.NodeKind, Name: n0, Node: &model.Node{Name: "n0"}}, true},
		{"it is leaving", model.Change{Kind: model.NodeKind, Name: n0, Node: &model.Node{Name: "n0", Leaving: true}}, false},
		{"it stays after all", model.Change{Kind: model.NodeKind, Name: n0, Node: &model.Node{Name: "n0"}}, true},
		{"it is gone", model.Change{Kind: model.NodeKind, Name: n0}, false},
	} {
		p.Apply([]model.Change{c.change})
		if s := p.PlanNow(time.Unix(1000, 0)); s.NodeStatus.Eligible != c.want {
			t.Errorf("%s: eligible %t", c.what, s.NodeStatus.Eligible)
		}
	}
}

func TestHealthCheckAddressesFollowNodePortPrefixes(t *testing.T) {
	node := &model.Node{Name: "n0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}}
	for prefixes, want := range map[string]string{
		"":                       "[0.0.0.0 ::]", // as without nodePortAddresses in kube-proxy
		"192.0.2.0/24":           "[192.0.2.7 ::]",
		"192.0.2.0/24 2001::/16": "[192.0.2.7 2001:db8::7]",
		"0.0.0.0/0 2001::/16":    "[0.0.0.0 2001:db8::7]",
		"203.0.113.0/24":         "[::]",
	} {
		s := testSettings()
		for _, f := range strings.Fields(prefixes) {
			s.NodePortPrefixes = append(s.NodePortPrefixes, netip.MustParsePrefix(f))
		}
		p := New(s, nativePlugins)
		p.Apply([]model.Change{{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: node}, {Kind: model.Synced}})
		if got := fmt.Sprint(p.PlanNow(time.Unix(1000, 0)).NodeStatus.HealthAddrs); got != want {
			t.Errorf("%q: %s, want %s", prefixes, got, want)
		}
	}
}

func TestTriggersAreReportedOnceWithoutAChange(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	step := func(at int64, nodes ...string) Result {
		c := lbSlice(model.IPv4, nodes...)
		c.Slice.Trigger = at
		p.Apply([]model.Change{c})
		return p.PlanNow(time.Unix(1000, 0))
	}
	p.Apply([]model.Change{lb(nil), {Kind: model.Synced}})
	for _, c := range []struct {
		what  string
		step  Result
		want  []Trigger
		delta bool
	}{
		{"a new slice", step(5000, "n0"), []Trigger{{5000, model.IPv4}}, true},
		{"the same again", step(5000, "n0"), nil, false},
		{"only the time differs", step(6000, "n0"), nil, false},
		{"a change", step(7000, "n0", "n1"), []Trigger{{7000, model.IPv4}}, true},
		{"a change that does not say when", step(0, "n0"), nil, true},
	} {
		if !reflect.DeepEqual(c.step.Triggers, c.want) || c.step.Delta.Empty() == c.delta {
			t.Errorf("%s: triggers %v, want %v; delta %v", c.what, c.step.Triggers, c.want, c.step.Delta.Changes)
		}
	}
}

func TestServicesWithoutLocalEndpointsAreCountedByPolicyAndFamily(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	p.Apply([]model.Change{lb(func(s *model.Service) { s.InternalLocal = true }), {Kind: model.Synced}})
	for _, c := range []struct {
		what               string
		change             model.Change
		internal, external int
	}{
		{"no endpoints at all are rejected, not missing here", lbSlice(model.IPv4), 0, 0},
		{"all elsewhere", lbSlice(model.IPv4, "n1", "n2"), 1, 1},
		{"one here", lbSlice(model.IPv4, "n1", "n0"), 0, 0},
		{"one here that drains still serves", lbSlice(model.IPv4, "n1", "~n0"), 0, 0},
		{"external only", lb(nil), 0, 0},
		{"all elsewhere, external only", lbSlice(model.IPv4, "n1"), 0, 1},
	} {
		p.Apply([]model.Change{c.change})
		s := p.PlanNow(time.Unix(1000, 0))
		got := s.Totals.Family.At(model.IPv4)
		if got.NoLocalInternal != c.internal || got.NoLocalExternal != c.external {
			t.Errorf("%s: internal %d, external %d, want %d, %d", c.what, got.NoLocalInternal, got.NoLocalExternal, c.internal, c.external)
		}
		if v6 := s.Totals.Family.At(model.IPv6); v6.NoLocalInternal+v6.NoLocalExternal != 0 {
			t.Errorf("%s: IPv6 %+v", c.what, v6)
		}
	}
}

// flakyPlugin fails if fail is set.
type flakyPlugin struct {
	zonePlugin
	fail bool
}

func (m *flakyPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	if m.fail {
		return errors.New("flaky")
	}
	return m.zonePlugin.Decide(req, resp)
}

func TestFallbacksAreCountedByPluginAndDecision(t *testing.T) {
	plugin := &flakyPlugin{}
	s := testSettings()
	s.Policies.Default = "zone"
	p := New(s, func(string) (policy.Plugin, error) { return plugin, nil })
	old := model.Name{Namespace: "shop", Name: "old"}
	svc := func(n model.Name, last byte) model.Change {
		return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{Name: n,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})}, Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}}}
	}
	eps := func(n model.Name, count int) model.Change {
		return model.Change{Kind: model.SliceKind, Name: n, Slice: slice(n, count)}
	}
	p.Apply([]model.Change{svc(old, 1), eps(old, 2), {Kind: model.Synced}})
	got := p.PlanNow(time.Unix(1000, 0)).Totals
	if got.Fallbacks != nil || got.Failing != 0 || len(got.Policies) != 1 || got.Policies[0].Decisions[policy.FromChain] != 1 {
		t.Fatalf("without failures: %+v", got)
	}
	late := &lateCaller{limit: 1}
	p.Apply([]model.Change{eps(old, 4)})
	if got := late.plan(p, time.Unix(1000, 0)).Totals; got.Fallbacks != nil || got.Failing != 0 || got.Policies[0].Decisions[policy.FromLastGood] != 1 {
		t.Fatalf("waiting: %+v", got)
	}
	late.answer(p, 1, time.Unix(1000, 0))
	p.PlanNow(time.Unix(1000, 0))
	plugin.fail = true
	young := model.Name{Namespace: "shop", Name: "young"}
	p.Apply([]model.Change{eps(old, 3), svc(young, 2), eps(young, 2)})
	got = p.PlanNow(time.Unix(1001, 0)).Totals
	want := []tally.PluginFallback{{Plugin: "by-zone", LastGood: 1, Default: 1}}
	if !reflect.DeepEqual(got.Fallbacks, want) || got.Failing != 2 {
		t.Fatalf("failing %d, fallbacks %+v, want %+v", got.Failing, got.Fallbacks, want)
	}
	plugin.fail = false
	got = p.PlanNow(time.Unix(1100, 0)).Totals
	if got.Fallbacks != nil || got.Failing != 0 {
		t.Fatalf("after recovery: failing %d, %+v", got.Failing, got.Fallbacks)
	}
}
