package planner

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// zonePlugin is a plugin: three times the weight for this node's zone, half of it (rounded down) for what terminates.
type zonePlugin struct{ policytest.Plugin }

func (zonePlugin) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		w := uint16(2)
		if e.Zone == req.Zone {
			w = 6
		}
		if e.Conditions&abi.Terminating != 0 {
			w /= 2
		}
		resp.Results[i].Value = abi.One * uint32(w)
	}
	return nil
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func nativePlugins(string) (policy.Plugin, error) { return zonePlugin{}, nil }

func testSettings() Settings {
	return Settings{
		Node: "n0", MasqueradeMark: 0x4000,
		PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Policies: &policy.Set{
			Policies: map[string]*policy.Policy{"zone": {Name: "zone", Steps: []policy.Step{{Plugin: "by-zone"}}}},
			Bindings: []policy.Binding{{Selector: policy.Selector{{Key: "zoned", Op: policy.Exists}}, Policy: "zone"}},
		},
	}
}

// randomChange changes one object of a small cluster, in which addresses and NodePorts collide on purpose.
func randomChange(r *rand.Rand) model.Change {
	flip := func() bool { return r.IntN(2) == 0 }
	svc := model.Name{Namespace: "shop", Name: fmt.Sprint("s", r.IntN(4))}
	ip4 := func(net byte) netip.Addr { return netip.AddrFrom4([4]byte{10, net, 0, byte(1 + r.IntN(5))}) }
	switch r.IntN(12) {
	case 11:
		return randomRoute(r)
	case 10:
		n := model.Name{Name: fmt.Sprint("c", r.IntN(2))}
		if flip() {
			return model.Change{Kind: model.ServiceCIDRKind, Name: n}
		}
		return model.Change{Kind: model.ServiceCIDRKind, Name: n, CIDR: &model.ServiceCIDR{
			Name: n.Name, CIDRs: []netip.Prefix{netip.PrefixFrom(ip4(96), 16+r.IntN(3)), netip.MustParsePrefix("fd00::/112")},
		}}
	case 0:
		n := model.Name{Name: fmt.Sprint("n", r.IntN(3))}
		if r.IntN(4) == 0 {
			return model.Change{Kind: model.NodeKind, Name: n}
		}
		node := &model.Node{Name: n.Name, Zone: fmt.Sprint("z", r.IntN(2)), Addresses: []netip.Addr{ip4(1)}, MilliCPU: 1000}
		if flip() {
			node.PodCIDRs = []netip.Prefix{netip.PrefixFrom(ip4(244), 24+r.IntN(2))}
		}
		return model.Change{Kind: model.NodeKind, Name: n, Node: node}
	case 1, 2, 3:
		if r.IntN(4) == 0 {
			return model.Change{Kind: model.ServiceKind, Name: svc}
		}
		s := &model.Service{
			Name: svc, Created: int64(r.IntN(3)), ClusterIPs: []netip.Addr{ip4(96)},
			InternalLocal: r.IntN(4) == 0, ExternalLocal: flip(),
		}
		if flip() {
			s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00::1"))
		}
		if flip() {
			s.Labels = map[string]string{"zoned": ""}
		}
		if flip() {
			s.ExternalIPs = []netip.Addr{ip4(97)}
		}
		if flip() {
			s.LoadBalancerIPs = []netip.Addr{ip4(97)}
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("172.16.2.0/24")}
		}
		for i := range 1 + r.IntN(2) {
			p := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(80 + i)}
			if flip() {
				p.NodePort = uint16(30000 + r.IntN(3))
			}
			s.Ports = append(s.Ports, p)
		}
		return model.Change{Kind: model.ServiceKind, Name: svc, Service: s}
	}
	name := model.Name{Namespace: "shop", Name: fmt.Sprint("slice", r.IntN(6))}
	if r.IntN(5) == 0 {
		return model.Change{Kind: model.SliceKind, Name: name}
	}
	s := &model.EndpointSlice{Name: name, Service: svc, Family: model.IPv4, Ports: []model.SlicePort{
		{Name: "p0", Protocol: model.TCP, Port: 8080}, {Name: "p1", Protocol: model.TCP, Port: 8081},
	}}
	for range r.IntN(4) {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: ip4([]byte{96, 244, 244, 244}[r.IntN(4)]), Node: fmt.Sprint("n", r.IntN(3)), Zone: fmt.Sprint("z", r.IntN(3)),
			Ready: r.IntN(3) > 0, Serving: flip(), Terminating: flip(),
		})
	}
	return model.Change{Kind: model.SliceKind, Name: name, Slice: s}
}

// TestIncrementalPlanEqualsFullPlan also replays every delta onto a copy, as a backend would.
func TestIncrementalPlanEqualsFullPlan(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		settings := testSettings()
		settings.PodsOfNode = seed%2 == 1
		p := New(settings, nativePlugins)
		now := time.Unix(1_000_000, 0)
		copied := &plan.Plan{}
		p.Apply([]model.Change{{Kind: model.Synced}})
		for range 60 {
			for range 1 + r.IntN(3) {
				p.Apply([]model.Change{randomChange(r)})
			}
			now = now.Add(time.Duration(r.IntN(2000)) * time.Millisecond)
			copied.Apply(p.PlanNow(now).Delta)

			scratch := New(settings, nativePlugins)
			scratch.Replace(p.cluster)
			scratch.evaluator.Node = p.evaluator.Node // what was last known of the Node outlasts it
			scratch.PlanNow(now)
			if !p.Current().Equal(scratch.Current()) {
				t.Fatalf("seed %d: incremental\n%s\nfrom scratch\n%s", seed, plan.Format(p.Current()), plan.Format(scratch.Current()))
			}
			if !copied.Equal(p.Current()) {
				t.Fatalf("seed %d: replayed\n%s\nplan\n%s", seed, plan.Format(copied), plan.Format(p.Current()))
			}
			if a, b := fmt.Sprint(p.Conflicts()), fmt.Sprint(scratch.Conflicts()); a != b {
				t.Fatalf("seed %d: conflicts\n%s\nfrom scratch\n%s", seed, a, b)
			}
			if err := plan.Validate(p.Current()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

func TestChangeCallsNoPluginOfOtherServices(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	var changes []model.Change
	for i := range 50 {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
		changes = append(changes,
			model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{
				Name: name, Labels: map[string]string{"zoned": ""}, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})},
				Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
			}},
			model.Change{Kind: model.SliceKind, Name: name, Slice: slice(name, 3)})
	}
	p.Apply(append(changes, model.Change{Kind: model.Synced}))
	p.PlanNow(time.Unix(1000, 0))
	if p.PluginCalls() != 50 {
		t.Fatalf("%d calls for 50 Services", p.PluginCalls())
	}
	name := model.Name{Namespace: "shop", Name: "s7"}
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: slice(name, 4)}})
	step := p.PlanNow(time.Unix(1001, 0))
	if p.PluginCalls() != 51 || len(step.Delta.Changes) != 1 {
		t.Fatalf("%d calls, %d changes after one slice changed", p.PluginCalls(), len(step.Delta.Changes))
	}
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: slice(name, 4)}})
	if step := p.PlanNow(time.Unix(1002, 0)); p.PluginCalls() != 51 || !step.Delta.Empty() {
		t.Fatalf("%d calls, delta %v after an equal slice", p.PluginCalls(), step.Delta)
	}
}

func slice(svc model.Name, endpoints int) *model.EndpointSlice {
	s := &model.EndpointSlice{Name: svc, Service: svc, Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "p0", Protocol: model.TCP, Port: 8080}}}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), Ready: true, Serving: true, Zone: "z0"})
	}
	return s
}

func TestNoPlanBeforeInitialSync(t *testing.T) {
	p := New(testSettings(), nativePlugins)
	name := model.Name{Namespace: "shop", Name: "web"}
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: name, Slice: slice(name, 1)}})
	if step := p.PlanNow(time.Unix(1, 0)); !step.Delta.Empty() || p.Synced() {
		t.Fatalf("planned %v", step.Delta)
	}
}

func TestOlderServiceGetsContestedFrontend(t *testing.T) {
	ip := netip.MustParseAddr("192.0.2.1")
	svc := func(name string, created int64) model.Change {
		n := model.Name{Namespace: "shop", Name: name}
		return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{
			Name: n, Created: created, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, name[0]})}, ExternalIPs: []netip.Addr{ip},
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}}
	}
	p := New(testSettings(), nativePlugins)
	p.Apply([]model.Change{svc("young", 9), svc("old", 5), {Kind: model.Synced}})
	step := p.PlanNow(time.Unix(1000, 0))
	if text := strings.Join(step.Warnings, "\n"); !strings.Contains(text, "Service shop/young 192.0.2.1:80/TCP") || !strings.Contains(text, "the older Service shop/old has it") {
		t.Fatalf("conflict is not reported: %q", text)
	}
	x, err := p.Explain(model.Name{Namespace: "shop", Name: "young"})
	if err != nil || len(x.Conflicts) != 1 || len(x.Frontends) != 1 {
		t.Fatalf("explained as %+v, %v", x, err)
	}
	key := plan.Key{Addr: ip, Port: 80, Protocol: model.TCP}
	if got := p.Current().Frontends[key].Owner.Service.Name; got != "old" {
		t.Fatalf("%s has it", got)
	}
	if c := p.Conflicts(); len(c) != 1 || c[0].Owner.Service.Name != "young" {
		t.Fatalf("conflicts %v", c)
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "old"}}})
	p.PlanNow(time.Unix(1001, 0))
	if got := p.Current().Frontends[key].Owner.Service.Name; got != "young" || len(p.Conflicts()) != 0 {
		t.Fatalf("%s has it, conflicts %v", got, p.Conflicts())
	}
}

func TestExternalAddressDoesNotTakeClusterIP(t *testing.T) {
	ip := netip.MustParseAddr("10.96.0.1")
	svc := func(name string, created int64, external bool) model.Change {
		n := model.Name{Namespace: "shop", Name: name}
		s := &model.Service{Name: n, Created: created, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 443}}}
		if s.ClusterIPs = []netip.Addr{ip}; external {
			s.ClusterIPs, s.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.96.0.2")}, []netip.Addr{ip}
		}
		return model.Change{Kind: model.ServiceKind, Name: n, Service: s}
	}
	p := New(testSettings(), nativePlugins)
	p.Apply([]model.Change{svc("evil", 1, true), {Kind: model.Synced}})
	p.PlanNow(time.Unix(1000, 0))
	p.Apply([]model.Change{svc("kubernetes", 9, false)})
	p.PlanNow(time.Unix(1001, 0))
	key := plan.Key{Addr: ip, Port: 443, Protocol: model.TCP}
	if f := p.Current().Frontends[key]; f.Owner.Service.Name != "kubernetes" || f.Kind != plan.ClusterIP {
		t.Fatalf("%s has it as its %s", f.Owner, f.Kind)
	}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "kubernetes"}}})
	p.PlanNow(time.Unix(1002, 0))
	if f := p.Current().Frontends[key]; f.Owner.Service.Name != "evil" {
		t.Fatalf("%s has it", f.Owner)
	}
}

func TestExplainCallsNoPluginAfterPolicyChange(t *testing.T) {
	settings := testSettings()
	settings.Policies = nil
	p := New(settings, nativePlugins)
	name := model.Name{Namespace: "shop", Name: "web"}
	p.Apply([]model.Change{
		{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, Labels: map[string]string{"zoned": ""}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
		}},
		{Kind: model.SliceKind, Name: name, Slice: slice(name, 2)}, {Kind: model.Synced},
	})
	p.PlanNow(time.Unix(1000, 0))
	if x, err := p.Explain(name); err != nil || x.Policy != nil || len(x.Decisions) != 1 {
		t.Fatalf("by the default rules: %+v, %v", x, err)
	}
	p.Configure(testSettings())
	x, err := p.Explain(name)
	if err != nil || x.Policy == nil || p.PluginCalls() != 0 {
		t.Fatalf("%+v, %v, %d calls", x, err, p.PluginCalls())
	}
	p.PlanNow(time.Unix(1001, 0))
	if x, _ := p.Explain(name); len(x.Decisions) != 1 || p.PluginCalls() != 1 {
		t.Fatalf("decided %d, %d calls", len(x.Decisions), p.PluginCalls())
	}
}

// TestAllocatedAddressIsNotAnExternalIP: an older Service takes no port of another's address, not even a free one.
func TestAllocatedAddressIsNotAnExternalIP(t *testing.T) {
	addr := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	service := func(namespace string, created int64, port uint16, edit func(*model.Service)) model.Change {
		s := &model.Service{
			Name: model.Name{Namespace: namespace, Name: "web"}, Created: created,
			ClusterIPs: addr("10.96.0." + fmt.Sprint(created)), Ports: []model.ServicePort{{Protocol: model.TCP, Port: port}},
		}
		edit(s)
		return model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s}
	}
	external := func(a string) func(*model.Service) {
		return func(s *model.Service) { s.ExternalIPs = addr(a) }
	}
	loadBalancer := func(a string) func(*model.Service) {
		return func(s *model.Service) { s.LoadBalancerIPs = addr(a) }
	}
	const vip, node = "203.0.113.7", "192.0.2.10"
	for name, c := range map[string]struct {
		tenant, victim func(*model.Service)
		at             string
		served         bool // the tenant's frontend, at another port than the victim's
	}{
		"ClusterIP":                         {external("10.96.0.9"), func(*model.Service) {}, "10.96.0.9", false},
		"load balancer IP":                  {external(vip), loadBalancer(vip), vip, false},
		"load balancer IP of mode Proxy":    {external(vip), func(s *model.Service) { s.ReservedIPs = addr(vip) }, vip, false},
		"ClusterIP as load balancer IP":     {loadBalancer("10.96.0.9"), func(*model.Service) {}, "10.96.0.9", false},
		"shared load balancer IP":           {loadBalancer(vip), loadBalancer(vip), vip, true},
		"shared external IP":                {external(vip), external(vip), vip, true},
		"external IP before load balancer":  {loadBalancer(vip), external(vip), vip, true},
		"node address as load balancer IP":  {external(node), loadBalancer(node), node, true},
		"node address as external IP":       {external(node), external(node), node, true},
		"own load balancer IP, not shared":  {func(s *model.Service) { s.ExternalIPs, s.LoadBalancerIPs = addr(vip), addr(vip) }, loadBalancer("203.0.113.8"), vip, true},
		"own, and another's, load balancer": {func(s *model.Service) { s.ExternalIPs, s.LoadBalancerIPs = addr(vip), addr(vip) }, loadBalancer(vip), vip, true},
	} {
		t.Run(name, func(t *testing.T) {
			settings := testSettings()
			settings.LocalAddrs = addr(node)
			tenant, victim := service("tenant", 1, 8443, c.tenant), service("victim", 9, 443, c.victim)
			for _, order := range [][]model.Change{{tenant, victim}, {victim, tenant}} {
				p := New(settings, nativePlugins)
				p.Apply(append(order[:1:1], model.Change{Kind: model.Synced}))
				p.PlanNow(time.Unix(1000, 0))
				p.Apply(order[1:])
				p.PlanNow(time.Unix(1000, 0))
				f := p.Current().Frontends[plan.Key{Addr: addr(c.at)[0], Port: 8443, Protocol: model.TCP}]
				if (f != nil) != c.served {
					t.Fatalf("the tenant has frontend %v at %s\n%s", f, c.at, plan.Format(p.Current()))
				}
				x, err := p.Explain(tenant.Name)
				if err != nil {
					t.Fatal(err)
				}
				if c.served != (len(x.Conflicts) == 0) || !c.served && !strings.Contains(x.Conflicts[0].Why, "the address belongs to Service victim/web as its") {
					t.Errorf("conflicts %v", x.Conflicts)
				}
				p.Apply([]model.Change{{Kind: model.ServiceKind, Name: victim.Name}})
				p.PlanNow(time.Unix(1000, 0))
				if p.Current().Frontends[plan.Key{Addr: addr(c.at)[0], Port: 8443, Protocol: model.TCP}] == nil {
					t.Error("the address is free, but the tenant does not get it")
				}
			}
		})
	}
}

func TestExternalIPDoesNotTakeTheAPIServersAddress(t *testing.T) {
	at := netip.MustParseAddr("192.0.2.5")
	apiServer := &model.EndpointSlice{
		Name: apiServerService, Service: apiServerService, Family: model.IPv4,
		Ports:     []model.SlicePort{{Name: "https", Protocol: model.TCP, Port: 6443}},
		Endpoints: []model.SliceEndpoint{{Addr: at, Ready: true, Serving: true}},
	}
	tenant := &model.Service{
		Name: model.Name{Namespace: "tenant", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.7")}, ExternalIPs: []netip.Addr{at},
		Ports: []model.ServicePort{{Name: "a", Protocol: model.TCP, Port: 6443}, {Name: "b", Protocol: model.TCP, Port: 443}},
	}
	p := New(testSettings(), nativePlugins)
	p.Apply([]model.Change{
		{Kind: model.ServiceKind, Name: tenant.Name, Service: tenant},
		{Kind: model.SliceKind, Name: apiServer.Name, Slice: apiServer}, {Kind: model.Synced},
	})
	step := p.PlanNow(time.Unix(1000, 0))
	key := func(port uint16) plan.Key { return plan.Key{Addr: at, Port: port, Protocol: model.TCP} }
	if p.Current().Frontends[key(6443)] != nil || p.Current().Frontends[key(443)] == nil {
		t.Fatal(plan.Format(p.Current()))
	}
	if text := fmt.Sprint(step.NewConflicts); !strings.Contains(text, "the API server listens there") {
		t.Errorf("conflicts %s", text)
	}
	p.Apply([]model.Change{{Kind: model.SliceKind, Name: apiServer.Name}})
	p.PlanNow(time.Unix(1001, 0))
	if p.Current().Frontends[key(6443)] == nil {
		t.Error("the API server has moved, but the external IP is not served")
	}
}
