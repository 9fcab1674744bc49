package simulation

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// canaryShop is shop with the Services web-v1, which has six Pods of shop/web, and web-v2, which has the other two, and a route
// that splits shop/web over both.
func canaryShop(weights ...uint32) *model.Snapshot {
	c := shop(6, 8)
	web := model.Name{Namespace: "shop", Name: "web"}
	all := c.Slices[web][0]
	for i, name := range []string{"web-v1", "web-v2"} {
		svc := *c.Services[web]
		svc.Name.Name = name
		svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(2 + i)})}
		c.Apply(model.Change{Kind: model.ServiceKind, Name: svc.Name, Service: &svc})
		s := *all
		s.Name, s.Service, s.Endpoints = svc.Name, svc.Name, [][]model.SliceEndpoint{all.Endpoints[:6], all.Endpoints[6:]}[i]
		c.Apply(model.Change{Kind: model.SliceKind, Name: s.Name, Slice: &s})
	}
	name := model.ObjectName{Kind: model.TCPRouteKind, Name: web}
	r := &model.Route{Name: name, Parents: []model.RouteParent{{Service: "web"}}}
	for i, w := range weights {
		r.Backends = append(r.Backends, model.RouteBackend{Service: []string{"web-v1", "web-v2", "none"}[i], Port: 80, Weight: w})
	}
	c.Apply(routeChange(r))
	return c
}

func serviceResult(t *testing.T, run *Run, name string) *ServiceResult {
	t.Helper()
	i := slices.IndexFunc(run.Services, func(s ServiceResult) bool { return s.Service == name })
	if i < 0 {
		t.Fatalf("no %s among %d Services", name, len(run.Services))
	}
	return &run.Services[i]
}

// TestWeightsOverTime: a canary grows, and its Pods get its share, each a fair one.
func TestWeightsOverTime(t *testing.T) {
	in := Input{Cluster: canaryShop(90, 10), Runs: []Config{{}}, Only: func(n model.Name) bool { return n.Name == "web" }}
	r := simulate(t, in, "at 10s\nweight shop/web web-v1 50\nweight shop/web web-v2:80 50\nat 20s\nweight shop/web web-v1 0\nuntil 30s", 1)
	if !slices.Equal(r.Asked, []string{"shop/web"}) || r.Services != 1 || len(r.Runs[0].Services) != 1 {
		t.Errorf("asked %v, %d Services, %d results", r.Asked, r.Services, len(r.Runs[0].Services))
	}
	web := serviceResult(t, &r.Runs[0], "shop/web")
	if web.Route != "TCPRoute shop/web" || len(web.Backends) != 2 || web.Backends[1].Service != "shop/web-v2" || web.Backends[1].Port != 80 {
		t.Fatalf("%q %+v", web.Route, web.Backends)
	}
	for second, want := range map[int][2]float64{0: {0.9, 0.1}, 9: {0.9, 0.1}, 10: {0.5, 0.5}, 19: {0.5, 0.5}, 20: {0, 1}, 30: {0, 1}} {
		loads := [2]float64{}
		for i := range web.Endpoints {
			if load := web.Endpoints[i].Load[second] / r.Runs[0].Series[second].Demand; i < 6 {
				loads[0] += load
			} else {
				loads[1] += load
			}
		}
		for i := range want {
			if got := web.Backends[i].Shares[second]; math.Abs(got-want[i]) > 0.01 || math.Abs(loads[i]-got) > 1e-4 {
				t.Errorf("%ds: backend %d has %g, its endpoints %g, want %g", second, i, got, loads[i], want[i])
			}
		}
	}
	if web.MaxOverload > 1.05 || web.FailedShare != 0 {
		t.Errorf("overload %g, failed %g", web.MaxOverload, web.FailedShare)
	}
}

// TestPartsWithoutEndpointsFail: the share of a backend that does not exist is refused.
func TestPartsWithoutEndpointsFail(t *testing.T) {
	r := simulate(t, Input{Cluster: canaryShop(2, 1, 1), Runs: []Config{{}}}, "until 1s", 1)
	if web := serviceResult(t, &r.Runs[0], "shop/web"); math.Abs(web.FailedShare-0.25) > 0.01 || math.Abs(web.Backends[2].Shares[0]-0.25) > 0.01 {
		t.Errorf("failed %g, backends %+v", web.FailedShare, web.Backends)
	}
	r = simulate(t, Input{Cluster: canaryShop(0, 0), Runs: []Config{{}}}, "until 1s", 1)
	if web := serviceResult(t, &r.Runs[0], "shop/web"); web.FailedShare != 1 || web.EmptyPools != 6 {
		t.Errorf("failed %g, %d empty pools", web.FailedShare, web.EmptyPools)
	}
}

// TestBackendsHavePolicies: the policy of a backend decides about its part, by what it sees of the connections to the parent.
func TestBackendsHavePolicies(t *testing.T) {
	set := &policy.Set{
		Policies: map[string]*policy.Policy{"out": {Name: "out", Steps: []policy.Step{{Plugin: "outlier"}}}},
		Bindings: []policy.Binding{{Policy: "out", Selector: policy.Selector{{Key: "v1", Op: policy.Exists}}}},
	}
	c := canaryShop(90, 10)
	svc := *c.Services[model.Name{Namespace: "shop", Name: "web-v1"}]
	svc.Labels = map[string]string{"v1": ""}
	c.Apply(model.Change{Kind: model.ServiceKind, Name: svc.Name, Service: &svc})
	demand, err := ParseDemand("rates", []byte("cluster shop/web 600"))
	if err != nil {
		t.Fatal(err)
	}
	in := Input{Cluster: c, Runs: []Config{{Settings: planner.Settings{Policies: set}}}, Demand: demand}
	r := simulate(t, in, "at 5s\nrefuse shop/web-v1 web-0\nuntil 30s", 1)
	web := serviceResult(t, &r.Runs[0], "shop/web")
	last := len(r.Runs[0].Series) - 1
	if e := &web.Endpoints[0]; e.Pod != "web-0" || e.Load[0] == 0 || e.Load[last] != 0 {
		t.Errorf("%s has %g before it refuses connections, and %g in the end", e.Pod, e.Load[0], e.Load[last])
	}
	if got := web.Backends[0].Shares[last]; math.Abs(got-0.9) > 0.01 {
		t.Errorf("the backend has %g in the end", got)
	}
}

func TestWrongWeights(t *testing.T) {
	for timeline, want := range map[string]string{
		"weight shop/wep web-v1 1":       `no TCPRoute or UDPRoute "shop/wep" with a Service as a parent (did you mean "shop/web"?)`,
		"weight shop/web web-v3 1":       `route shop/web has no backend "web-v3" (did you mean "web-v1"?)`,
		"weight shop/web web-v1:81 1":    `has no backend "web-v1:81"`,
		"weight shop/web web-v1 -1":      `"-1": want a weight from 0 to 1000000`,
		"weight shop/web web-v1 1000001": `"1000001": want a weight from 0 to 1000000`,
		"weight shop/web web-v1 much":    `"much": want a weight`,
	} {
		f, err := scenario.Parse("test", []byte(timeline))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newWorld(&Input{Cluster: canaryShop(1, 1), Timeline: f}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", timeline, err, want)
		}
	}
}
