package simulation

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// What one plugin of a chain decides, the others keep: at the scale of the cluster, not only of a node.

const canaryPercent = 5

// chainPod is an endpoint of shop/web.
type chainPod struct {
	addr       netip.Addr
	node, zone string
	canary     bool
}

// chainPods are 24 stable Pods and 3 canaries, as many in each zone.
func chainPods() (pods []chainPod) {
	for i := range 27 {
		zone := i % 3
		pods = append(pods, chainPod{
			addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)}), node: fmt.Sprintf("%c%02d", 'a'+zone, i/3%6), zone: string(rune('a' + zone)), canary: i >= 24,
		})
	}
	return pods
}

// chainCluster is a Service in three zones, of which the first has half of the Nodes.
func chainCluster(pods []chainPod) *model.Snapshot {
	c := model.NewSnapshot()
	for zone, nodes := range []int{12, 6, 6} {
		for i := range nodes {
			n := &model.Node{Name: fmt.Sprintf("%c%02d", 'a'+zone, i), Zone: string(rune('a' + zone)), Ready: true, MilliCPU: 4000}
			c.Apply(model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
		}
	}
	web := model.Name{Namespace: "shop", Name: "web"}
	c.Apply(model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}})
	s := &model.EndpointSlice{Name: web, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
	for _, p := range pods {
		name, labels := model.Name{Namespace: "shop", Name: "pod-" + p.addr.String()}, map[string]string{"track": "stable"}
		if p.canary {
			labels["track"] = "canary"
		}
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: p.addr, Node: p.node, Zone: p.zone, Ready: true, Serving: true, Pod: name.Name})
		c.Apply(model.Change{Kind: model.PodKind, Name: name, Pod: &model.Pod{Name: name, MilliCPU: 500, Labels: labels}})
	}
	c.Apply(model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
	c.Apply(model.Change{Kind: model.Synced})
	return c
}

// chainShares are shares of the connections of all nodes.
type chainShares struct {
	canary, crossZone float64
	endpoint          map[netip.Addr]float64
}

// simulateChain runs a chain over a timeline, and returns the shares at each sample. There are so many connections that rounding
// their number down, as nodes count them, is no difference to least-loaded.
func simulateChain(t *testing.T, pods []chainPod, chain []string, timeline string) (all []chainShares, end []chainPod) {
	t.Helper()
	p := &policy.Policy{Name: "p"}
	for _, name := range chain {
		p.Steps = append(p.Steps, policy.Step{Plugin: name})
	}
	set := &policy.Set{Policies: map[string]*policy.Policy{"p": p}, Default: "p"}
	r := simulate(t, Input{Cluster: chainCluster(pods), Runs: []Config{{Settings: planner.Settings{Policies: set}}}, Step: 2 * time.Second, Demand: NodesDemand(1000)}, timeline, 1)
	run := &r.Runs[0]
	s := &run.Services[0]
	if s.Error != "" || s.EndpointsOmitted > 0 {
		t.Fatalf("%v: %s, %d endpoints omitted", chain, s.Error, s.EndpointsOmitted)
	}
	of := map[netip.Addr]chainPod{}
	for _, p := range pods {
		of[p.addr] = p
	}
	for i := range run.Series {
		at := chainShares{crossZone: run.Series[i].CrossZoneShare, endpoint: map[netip.Addr]float64{}}
		for _, e := range s.Endpoints {
			addr := netip.MustParseAddrPort(e.Address).Addr()
			share := e.Load[i] / run.Series[i].Demand
			at.endpoint[addr] = share
			if of[addr].canary {
				at.canary += share
			}
		}
		all = append(all, at)
	}
	for _, e := range s.Endpoints {
		if p := (chainPod{netip.MustParseAddrPort(e.Address).Addr(), e.Node, e.Zone, false}); e.Load[len(run.Series)-1] > 0 {
			p.canary = of[p.addr].canary
			end = append(end, p)
		}
	}
	return all, end
}

// near reports whether a share is another one, to five percent of it.
func near(got, want float64) bool { return math.Abs(got-want) <= .05*want }

// acceptedOrders returns the orders of plugins that a configuration may have.
func acceptedOrders(plugins []string) (out [][]string) {
	var extend func(chain, rest []string)
	extend = func(chain, rest []string) {
		var steps []policy.Step
		for _, name := range chain {
			steps = append(steps, policy.Step{Plugin: name})
		}
		if policy.CheckOrder(steps, newPlugins()) != nil {
			return
		}
		if len(chain) > 0 {
			out = append(out, slices.Clone(chain))
		}
		for i, name := range rest {
			extend(append(slices.Clone(chain), name), slices.Delete(slices.Clone(rest), i, i+1))
		}
	}
	extend(nil, plugins)
	return out
}

// TestEveryAcceptedChainComposes: a canary keeps its percentage and zones what spills, whatever else is in the chain; an endpoint
// that warms up only gains and one that drains only loses; and in the end the chain decides what it would after a start.
func TestEveryAcceptedChainComposes(t *testing.T) {
	pods := chainPods()
	zoned, _ := simulateChain(t, pods, []string{"locality"}, "")
	spill := zoned[0].crossZone
	chains := acceptedOrders([]string{"outlier", "warm", "drain", "canary", "locality"})
	if len(chains) != 39 {
		t.Errorf("%d chains are accepted: %v", len(chains), chains)
	}
	for i, chain := range chains {
		if testing.Short() && i%3 > 0 {
			continue
		}
		steady, _ := simulateChain(t, pods, chain, "")
		checkShares(t, chain, "steady", steady[0], spill)
		for what, timeline := range map[string]string{
			"warming":  "after 10s\nscale shop/web 33 startup=2s\nuntil 4m",
			"draining": "after 10s\ndrain shop/web pods=4 grace=30s\nuntil 4m",
		} {
			all, end := simulateChain(t, pods, chain, timeline)
			last := all[len(all)-1]
			for addr, share := range last.endpoint {
				for i := 1; i < len(all); i++ {
					before, now := all[i-1].endpoint[addr], all[i].endpoint[addr]
					if _, old := steady[0].endpoint[addr]; !old && now < 0.98*before || share == 0 && now > 1.02*before {
						t.Errorf("%v: %s: endpoint %s has %.4f after %.4f, at sample %d", chain, what, addr, now, before, i)
						break
					}
				}
			}
			if slices.Contains(chain, "canary") && what == "warming" && !near(last.canary, canaryPercent/100.0) {
				t.Errorf("%v: %s: the canary gets %.2f %% in the end", chain, what, 100*last.canary)
			}
			fresh, _ := simulateChain(t, end, chain, "")
			for addr, want := range fresh[0].endpoint {
				if got := last.endpoint[addr]; math.Abs(got-want) > 0.01*want {
					t.Errorf("%v: %s: endpoint %s has %.4f in the end, %.4f after a start", chain, what, addr, got, want)
				}
			}
		}
	}
}

func checkShares(t *testing.T, chain []string, what string, got chainShares, spill float64) {
	t.Helper()
	if slices.Contains(chain, "canary") && !near(got.canary, canaryPercent/100.0) {
		t.Errorf("%v: %s: the canary gets %.2f %%, want %d %%", chain, what, 100*got.canary, canaryPercent)
	}
	if slices.Contains(chain, "locality") && !near(got.crossZone, spill) {
		t.Errorf("%v: %s: %.2f %% cross zones, want %.2f %%", chain, what, 100*got.crossZone, 100*spill)
	}
}

// TestPresetsAtClusterScale: in the cluster of TestChainsAtClusterScale, a preset holds what its plugins promise, and a Pod that
// is added gets a small share at first, and an ordinary one in the end.
func TestPresetsAtClusterScale(t *testing.T) {
	pods := chainPods()
	zoned, _ := simulateChain(t, pods, []string{"locality"}, "")
	for _, preset := range config.Presets() {
		var chain, plugins []string
		for _, s := range preset.Plugins {
			chain, plugins = append(chain, preset.Name+"/"+s.Name), append(plugins, s.Name)
		}
		steady, _ := simulateChain(t, pods, chain, "")
		checkShares(t, plugins, preset.Name, steady[0], zoned[0].crossZone)
		all, _ := simulateChain(t, pods, chain, "after 10s\nscale shop/web 30 startup=2s\nuntil 4m")
		last, news := all[len(all)-1], 0
		for addr, share := range last.endpoint {
			if _, old := steady[0].endpoint[addr]; old {
				continue
			}
			first, ordinary := 0.0, 1.0/30
			for i := range all {
				if first = all[i].endpoint[addr]; first > 0 {
					break
				}
			}
			if news++; first <= 0 || first > 0.3*ordinary || share < 0.8*ordinary {
				t.Errorf("%s: the new endpoint %s gets %.4f at first and %.4f in the end", preset.Name, addr, first, share)
			}
		}
		if news != 3 {
			t.Errorf("%s: %d new endpoints", preset.Name, news)
		}
		t.Logf("%-14s %6.2f %% canary, %5.2f %% cross zones", preset.Name, 100*steady[0].canary, 100*steady[0].crossZone)
	}
}

// TestChainsAtClusterScale prints what chains decide for a Service whose zones have half, a quarter and a quarter of the clients,
// and a third of the endpoints each, of which a ninth is a canary of 5 %.
func TestChainsAtClusterScale(t *testing.T) {
	pods := chainPods()
	zoned, _ := simulateChain(t, pods, []string{"locality"}, "")
	t.Logf("%-75s %8s %11s %16s %16s", "chain", "canary", "cross-zone", "least of a mean", "most of a mean")
	for _, text := range []string{
		"canary", "locality", "priority", "lifecycle", "subset", "maglev", "least-loaded", "canary locality", "lifecycle locality",
		"canary priority", "locality subset", "canary maglev", "lifecycle canary locality",
		"outlier lifecycle locality", "outlier lifecycle canary locality subset", "outlier lifecycle canary locality maglev rebalance least-loaded",
	} {
		chain := strings.Fields(text)
		all, _ := simulateChain(t, pods, chain, "")
		got := all[0]
		least, most := math.Inf(1), 0.0
		for _, p := range pods {
			if p.canary && slices.Contains(chain, "canary") {
				continue // as it should be
			}
			least, most = min(least, got.endpoint[p.addr]*float64(len(pods))), max(most, got.endpoint[p.addr]*float64(len(pods)))
		}
		t.Logf("%-75s %6.2f %% %9.2f %% %16.2f %16.2f", strings.Join(chain, " → "), 100*got.canary, 100*got.crossZone, least, most)
		checkShares(t, chain, "steady", got, zoned[0].crossZone)
	}
}
