package simulation

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

func policyOf(plugin string) planner.Settings {
	return planner.Settings{Policies: &policy.Set{
		Policies: map[string]*policy.Policy{"p": {Name: "p", Steps: []policy.Step{{Plugin: plugin}}}}, Default: "p",
	}}
}

func simulate(t *testing.T, in Input, timeline string, workers int) *Result {
	t.Helper()
	if timeline != "" {
		f, err := scenario.Parse("test", []byte(timeline))
		if err != nil {
			t.Fatal(err)
		}
		in.Timeline = f
	}
	if in.Demand == nil {
		in.Demand = NodesDemand(1)
	}
	s, err := New(in)
	if err != nil {
		t.Fatal(err)
	}
	var plugins [][]Plugins
	for range workers {
		var own []Plugins
		for range in.Runs {
			own = append(own, newPlugins())
		}
		plugins = append(plugins, own)
	}
	return s.Run(plugins, func(n int, f func(int)) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	})
}

// Three zones of ten Nodes; the Service has four Pods: two in a, one in b, one in c. By priority and by the default rules,
// computed by hand.
func TestLoadByHand(t *testing.T) {
	c := shop(30, 4)
	r := simulate(t, Input{Cluster: c, Runs: []Config{{}, {Settings: policyOf("priority")}}}, "", 1)
	a, b := &r.Runs[0], &r.Runs[1]
	if got := a.Services[0]; got.MaxOverload != 1 || math.Abs(got.CrossZoneShare-2.0/3) > 1e-6 {
		t.Errorf("A: %+v", got)
	}
	// By priority, nodes keep connections in the zone: 10 connections/s to the two in zone a, and to each of the others; the fair
	// share is 7.5.
	got := b.Services[0]
	for i, want := range []float64{5, 10, 10, 5} { // n00 a, n01 b, n02 c, n03 a
		if got.Endpoints[i].Load[0] != want || math.Abs(got.Endpoints[i].Overload[0]-want/7.5) > 1e-6 {
			t.Errorf("B: endpoint %s: %v, want %g", got.Endpoints[i].Address, got.Endpoints[i], want)
		}
	}
	if got.MaxOverload != 1.333333 || got.CrossZoneShare != 0 || b.Summary.PluginCalls != 30 || a.Summary.PluginCalls != 0 {
		t.Errorf("B: %+v, %+v", got, b.Summary)
	}
	if d := r.Comparison.Divergence; math.Abs(d-(10*0.5+20*0.75)/30) > 1e-6 || b.Summary.Divergence != d {
		t.Errorf("divergence %g", d)
	}
	for i := range c.Slices[model.Name{Namespace: "shop", Name: "web"}][0].Endpoints {
		c.Pods[model.Name{Namespace: "shop", Name: []string{"web-0", "web-1", "web-2", "web-3"}[i]}].MilliCPU = []int64{1000, 2000, 2000, 1000}[i]
	}
	sized := simulate(t, Input{Cluster: c, Capacity: "request:cpu", Runs: []Config{{Settings: policyOf("priority")}}}, "", 1)
	if got := sized.Runs[0].Summary.MaxOverload; got != 1 {
		t.Errorf("by CPU: overload %g", got)
	}
}

// A policy that depends on the name of the node is found, and each node is computed.
func TestPolicyThatDependsOnTheNode(t *testing.T) {
	c := shop(300, 3)
	for plugin, want := range map[string]bool{"locality": false, "by-name": true, "subset": true} {
		r := simulate(t, Input{Cluster: c, Runs: []Config{{Settings: policyOf(plugin)}}}, "", 2)
		if got := r.Runs[0].Policies[0]; got.PerNode != want || got.Services != 1 {
			t.Errorf("%s: %+v", plugin, got)
		}
		exact := simulate(t, Input{Cluster: c, EveryNode: true, Runs: []Config{{Settings: policyOf(plugin)}}}, "", 1)
		for i, e := range exact.Runs[0].Services[0].Endpoints {
			if got := r.Runs[0].Services[0].Endpoints[i]; got.Load[0] != e.Load[0] {
				t.Errorf("%s: %s: %g, want %g", plugin, e.Address, got.Load[0], e.Load[0])
			}
		}
		if r.Runs[0].Summary.PluginCalls != exact.Runs[0].Summary.PluginCalls {
			t.Errorf("%s: %d calls, want %d", plugin, r.Runs[0].Summary.PluginCalls, exact.Runs[0].Summary.PluginCalls)
		}
	}
}

// An endpoint that does not answer is ejected, and gets connections again later.
func TestOutlierIsEjected(t *testing.T) {
	in := Input{Cluster: shop(9, 6), Demand: NodesDemand(20), Runs: []Config{{Settings: policyOf("outlier")}, {}}}
	r := simulate(t, in, "at 10s\nsilent shop/web web-0\nat 20s\nanswer shop/web web-0\nuntil 2m", 1)
	a, b := r.Runs[0].Summary.FailedShare, r.Runs[1].Summary.FailedShare
	if want := 10.0 / 121 / 6; math.Abs(b-want) > 1e-3 || a <= 0 || a > b/2 {
		t.Errorf("%g of the connections fail with the policy, %g without, want %g", a, b, want)
	}
	load := r.Runs[0].Services[0].Endpoints[0].Load
	if load[9] != 30 || load[14] != 0 || load[119] != 30 {
		t.Errorf("load %v", load)
	}
}

// The result does not depend on the number of workers, nor on what maps return first.
func TestResultIsReproducible(t *testing.T) {
	cluster, generated := randomCluster(4)
	settings := generated.Settings
	settings.Policies = policyOf("locality").Policies
	in := Input{Cluster: cluster, Demand: CPUDemand(2), Runs: []Config{{Settings: settings}, {}}, Seed: 3}
	var texts []string
	for _, workers := range []int{1, 2, 5} {
		text, err := json.Marshal(simulate(t, in, "at 3s\nnode 30% lost\nuntil 2m", workers))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	if texts[0] != texts[1] || texts[0] != texts[2] {
		t.Errorf("results differ:\n%.2000s\n%.2000s", texts[0], texts[1])
	}
}

// Sums and shares of each result are consistent.
func TestConservation(t *testing.T) {
	for seed := range uint64(20) {
		cluster, generated := randomCluster(seed)
		settings := generated.Settings
		settings.Policies = policyOf("locality").Policies
		r := simulate(t, Input{Cluster: cluster, Runs: []Config{{Settings: settings}}, Step: 5 * time.Second}, "at 10s\nnode 40% lost\nuntil 100s", 1)
		for _, s := range r.Runs[0].Series {
			from, to := 0.0, 0.0
			for z := range r.Zones {
				from += s.ZoneDemand[z]
				to += s.ZoneLoad[z]
			}
			if math.Abs(from-s.Demand) > 1e-4 || to > s.Demand+1e-4 || s.FailedShare < (s.Demand-to)/max(1, s.Demand)-1e-5 {
				t.Errorf("seed %d: %+v", seed, s)
			}
		}
	}
}

func TestInvalidInputs(t *testing.T) {
	partial := shop(3, 3)
	partial.NodesPartial = true
	for _, in := range []Input{
		{Cluster: shop(3, 3)},
		{Cluster: model.NewSnapshot(), Runs: []Config{{}}},
		{Cluster: partial, Runs: []Config{{}}},
	} {
		in.Demand = NodesDemand(1)
		if _, err := New(in); err == nil {
			t.Errorf("%+v is accepted", in)
		}
	}
}

// A Service is the same alone and among the others, whatever the timeline does to them.
func TestOneServiceAloneEqualsItAmongAll(t *testing.T) {
	cluster, generated := randomCluster(4)
	settings := generated.Settings
	settings.Policies = policyOf("locality").Policies
	in := Input{Cluster: cluster, Demand: NodesDemand(2), Runs: []Config{{Settings: settings}, {}}, EveryNode: true}
	const timeline = "node 30% lost detect=5s evict=5s\nuntil 1m"
	all := simulate(t, in, timeline, 2)
	checked := 0
	for i := range all.Runs[0].Services {
		want := &all.Runs[0].Services[i]
		in.Only = func(n model.Name) bool { return n.String() == want.Service }
		one := simulate(t, in, timeline, 1)
		if one.Services != 1 {
			t.Fatalf("%d Services", one.Services)
		}
		for j := range one.Runs[0].Services {
			if got := &one.Runs[0].Services[j]; got.Port == want.Port && got.Protocol == want.Protocol && got.Family == want.Family {
				checked++
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s:%s: %+v, among all %+v", want.Service, want.Port, got, want)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no Service was compared")
	}
}

// What is asked about is in the result, however many Services have a larger overload.
func TestServicesThatAreAskedAboutAreListed(t *testing.T) {
	c := shop(3, 3)
	web := model.Name{Namespace: "shop", Name: "web"}
	for i := range 3 * MaxServices {
		name := model.Name{Namespace: "other", Name: fmt.Sprint("svc-", i)}
		svc, slice := *c.Services[web], *c.Slices[web][0]
		svc.Name, slice.Service, slice.Name.Namespace = name, name, "other"
		svc.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})}
		slice.Name.Name = name.Name + "-x"
		c.Apply(model.Change{Kind: model.ServiceKind, Name: name, Service: &svc})
		c.Apply(model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: &slice})
	}
	for name, in := range map[string]Input{"by the caller": {Asked: []model.Name{web}}, "by the timeline": {}, "by nobody": {}} {
		in.Cluster, in.Runs = c, []Config{{}}
		timeline := "until 5s"
		if name == "by the timeline" {
			timeline = "answer shop/web 100%\n" + timeline
		}
		r := simulate(t, in, timeline, 2)
		listed := slices.ContainsFunc(r.Runs[0].Services, func(s ServiceResult) bool { return s.Service == "shop/web" })
		if want := name != "by nobody"; listed != want || slices.Contains(r.Asked, "shop/web") != want {
			t.Errorf("%s: listed %t, asked %q", name, listed, r.Asked)
		}
	}
}
