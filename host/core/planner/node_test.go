package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// plannerWithNode returns a planner of a cluster with one ClusterIP Service and, unless it is nil, the Node n0.
func plannerWithNode(s Settings, node *model.Node) *Planner {
	name := model.Name{Namespace: "shop", Name: "web"}
	p := New(s, nativePlugins)
	p.Apply([]model.Change{
		{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, ClusterIPs: addrs("10.96.0.1"), Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80, NodePort: 30080}},
		}},
		{Kind: model.SliceKind, Name: name, Slice: slice(name, 1)},
		{Kind: model.Synced},
	})
	if node != nil {
		p.Apply([]model.Change{nodeChange(node)})
	}
	return p
}

func nodeChange(n *model.Node) model.Change {
	return model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: n}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func clusterIP(p *Planner) *plan.Frontend {
	return p.Current().Frontends[plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}]
}

func TestPodSourcesFollowNodePodCIDRs(t *testing.T) {
	p := plannerWithNode(Settings{Node: "n0", PodsOfNode: true, PodSources: prefixes("10.9.0.0/16")}, nil)
	now := time.Unix(1000, 0)
	step := func(sources []netip.Prefix, masq plan.Masquerade, warnings ...string) {
		t.Helper()
		now = now.Add(time.Second)
		s := p.PlanNow(now)
		if got := p.Current().Global.PodSources; !slices.Equal(got, sources) {
			t.Errorf("sources %v, want %v", got, sources)
		}
		if got := clusterIP(p).Masquerade; got != masq {
			t.Errorf("masquerade %v, want %v", got, masq)
		}
		if fmt.Sprint(s.Warnings) != fmt.Sprint(warnings) {
			t.Errorf("warnings %q, want %q", s.Warnings, warnings)
		}
	}
	step(nil, plan.MasqueradeNever, "Node n0: not found: no source counts as a Pod; NodePorts are not served: connections to them are refused; "+
		"topology hints for zones and bindings by labels of the node do not apply; /healthz answers 503")
	step(nil, plan.MasqueradeNever) // said once
	at := addrs("192.0.2.1")
	p.Apply([]model.Change{nodeChange(&model.Node{Name: "n0", Addresses: at})})
	step(nil, plan.MasqueradeNever, "Node n0: no spec.podCIDRs: no source counts as a Pod")
	p.Apply([]model.Change{nodeChange(&model.Node{Name: "n0", Addresses: at, PodCIDRs: prefixes("10.244.1.0/24", "fd00::/64")})})
	step(prefixes("10.244.1.0/24", "fd00::/64"), plan.MasqueradeOutside)
	p.Apply([]model.Change{nodeChange(&model.Node{Name: "n0", Addresses: at, PodCIDRs: prefixes("10.244.2.0/24")})})
	step(prefixes("10.244.2.0/24"), plan.MasqueradeOutside)
	p.Apply([]model.Change{nodeChange(nil)})
	step(prefixes("10.244.2.0/24"), plan.MasqueradeOutside,
		"Node n0: not found: what was last known stays in force: addresses 192.0.2.1, podCIDRs 10.244.2.0/24; /healthz answers 503")
	step(prefixes("10.244.2.0/24"), plan.MasqueradeOutside) // said once
	p.Apply([]model.Change{nodeChange(&model.Node{Name: "n0", Addresses: at, PodCIDRs: prefixes("10.244.9.0/24")})})
	step(prefixes("10.244.9.0/24"), plan.MasqueradeOutside)
}

func TestLateDetectorAppliesToAllServices(t *testing.T) {
	s := Settings{Node: "n0"}
	p := plannerWithNode(s, nil)
	p.PlanNow(time.Unix(1000, 0))
	if clusterIP(p).Masquerade != plan.MasqueradeNever {
		t.Fatal("masqueraded without a detector")
	}
	s.PodInterfaces = []string{"veth*"}
	p.Configure(s)
	p.PlanNow(time.Unix(1001, 0))
	if clusterIP(p).Masquerade != plan.MasqueradeOutside {
		t.Error("not masqueraded with a detector")
	}
}

func TestPrimaryNodePortAddresses(t *testing.T) {
	node := &model.Node{Name: "n0", Addresses: addrs("192.0.2.1", "192.0.2.2", "2001:db8::1")}
	for name, c := range map[string]struct {
		node     *model.Node
		settings Settings
		want     []netip.Addr
		warnings int
	}{
		"the Node's first of each family":  {node, Settings{}, addrs("192.0.2.1", "2001:db8::1"), 0},
		"bindAddress wins in its family":   {node, Settings{Planning: Planning{BindAddress: netip.MustParseAddr("192.0.2.9")}}, addrs("192.0.2.9", "2001:db8::1"), 0},
		"bindAddress of IPv6":              {node, Settings{Planning: Planning{BindAddress: netip.MustParseAddr("2001:db8::9")}}, addrs("192.0.2.1", "2001:db8::9"), 0},
		"bindAddress without a Node":       {nil, Settings{Planning: Planning{BindAddress: netip.MustParseAddr("192.0.2.9")}}, addrs("192.0.2.9"), 0},
		"no Node":                          {nil, Settings{LocalAddrs: addrs("192.0.2.7")}, nil, 1},
		"CIDRs need no Node":               {nil, Settings{LocalAddrs: addrs("192.0.2.7", "127.0.0.1"), NodePortPrefixes: prefixes("0.0.0.0/0")}, addrs("192.0.2.7"), 0},
		"a family without a CIDR has all":  {node, Settings{NodePortPrefixes: prefixes("192.0.2.2/32")}, addrs("192.0.2.2", "2001:db8::1"), 0},
		"bindAddress is one of the node's": {nil, Settings{Planning: Planning{BindAddress: netip.MustParseAddr("192.0.2.9")}, NodePortPrefixes: prefixes("192.0.2.0/24")}, addrs("192.0.2.9"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.settings.Node = "n0"
			p := plannerWithNode(c.settings, c.node)
			step := p.PlanNow(time.Unix(1000, 0))
			if got := p.Current().Global.NodePortAddrs; !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if len(step.Warnings) != c.warnings {
				t.Errorf("warnings %q", step.Warnings)
			}
		})
	}
}

func TestNodePortAddressesFollowLinkAddresses(t *testing.T) {
	p := plannerWithNode(Settings{Node: "n0", NodePortPrefixes: prefixes("0.0.0.0/0"), LocalAddrs: addrs("192.0.2.1")}, nil)
	p.PlanNow(time.Unix(1000, 0))
	p.SetLocalAddrs(addrs("192.0.2.1", "192.0.2.5"))
	step := p.PlanNow(time.Unix(1001, 0))
	if step.Delta.Global == nil || !slices.Equal(p.Current().Global.NodePortAddrs, addrs("192.0.2.1", "192.0.2.5")) {
		t.Errorf("delta %+v, addresses %v", step.Delta, p.Current().Global.NodePortAddrs)
	}
}

func TestServiceCIDRsBecomeRangesOfThePlan(t *testing.T) {
	p := plannerWithNode(Settings{Node: "n0"}, &model.Node{Name: "n0"})
	cidr := func(name string, list ...string) model.Change {
		c := model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: name}}
		if len(list) > 0 {
			c.CIDR = &model.ServiceCIDR{Name: name, CIDRs: prefixes(list...)}
		}
		return c
	}
	now := time.Unix(1000, 0)
	want := func(list ...string) {
		t.Helper()
		now = now.Add(time.Second)
		p.PlanNow(now)
		if got := p.Current().Global.ServiceCIDRs; !slices.Equal(got, prefixes(list...)) {
			t.Errorf("got %v, want %v", got, list)
		}
	}
	free := plan.Flow{From: netip.MustParseAddr("192.0.2.77"), To: netip.MustParseAddrPort("10.96.7.7:80"), Protocol: model.TCP}
	want()
	if out := p.Current().Trace(free, nil); out.Matched {
		t.Errorf("without a ServiceCIDR: %+v", out)
	}
	p.Apply([]model.Change{cidr("kubernetes", "10.96.0.0/16", "fd00:96::/112"), cidr("more", "10.96.128.0/17", "10.97.0.0/16")})
	want("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112") // 10.96.128.0/17 lies in the first
	if out := p.Current().Trace(free, nil); !out.Matched || out.Verdict != plan.Drop || !strings.Contains(out.Why, "Service range") {
		t.Errorf("an address that no Service has: %+v", out)
	}
	p.Apply([]model.Change{cidr("kubernetes")})
	want("10.96.128.0/17", "10.97.0.0/16")
	p.Apply([]model.Change{cidr("more")})
	want()
}

func TestNodePortsUseSelectedLinkLocalAddressesButNotLoopback(t *testing.T) {
	s := testSettings()
	s.NodePortPrefixes = []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::/0")}
	for _, a := range []string{"169.254.20.10", "192.168.0.1", "127.0.0.1", "::1", "fe80::5"} {
		s.LocalAddrs = append(s.LocalAddrs, netip.MustParseAddr(a))
	}
	p := New(s, nil)
	p.Apply([]model.Change{{Kind: model.Synced}})
	p.PlanNow(time.Unix(0, 0))
	want := "[169.254.20.10 fe80::5]"
	if got := fmt.Sprint(p.Current().Global.NodePortAddrs); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLocalhostNodePortAddresses(t *testing.T) {
	node := &model.Node{Name: "n0", Addresses: addrs("192.0.2.1", "192.0.2.2", "2001:db8::1")}
	local := addrs("192.0.2.3", "127.0.0.1", "::1")
	for name, c := range map[string]struct {
		prefixes                    []netip.Prefix
		primary                     bool
		nodePorts, loopback, health []netip.Addr
	}{
		"primary":               {nil, false, addrs("192.0.2.1", "2001:db8::1"), nil, addrs("0.0.0.0", "::")},
		"primary and localhost": {prefixes("127.0.0.0/8", "::1/128"), true, addrs("192.0.2.1", "2001:db8::1"), addrs("127.0.0.1", "::1"), addrs("0.0.0.0", "::")},
		"localhost":             {prefixes("127.0.0.0/8", "::1/128"), false, nil, addrs("127.0.0.1", "::1"), nil},
		"all":                   {prefixes("0.0.0.0/0", "::/0"), false, addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"), nil, addrs("0.0.0.0", "::")},
		"primary and a CIDR":    {prefixes("192.0.2.3/32"), true, addrs("192.0.2.1", "192.0.2.3", "2001:db8::1"), nil, addrs("192.0.2.1", "192.0.2.3", "::")},
		"a loopback address":    {prefixes("127.0.0.7/32", "127.1.0.0/16"), false, addrs("2001:db8::1"), addrs("127.0.0.7"), addrs("::")},
	} {
		t.Run(name, func(t *testing.T) {
			p := plannerWithNode(Settings{Node: "n0", NodePortPrefixes: c.prefixes, NodePortPrimary: c.primary, LocalAddrs: local}, node)
			r := p.PlanNow(time.Unix(1, 0))
			if got := p.Current().Global.NodePortAddrs; !slices.Equal(got, c.nodePorts) {
				t.Errorf("NodePorts on %v, want %v", got, c.nodePorts)
			}
			if got := r.NodeStatus.LocalhostAddrs; !slices.Equal(got, c.loopback) {
				t.Errorf("loopback addresses %v, want %v", got, c.loopback)
			}
			if got := p.Current().Global.LocalhostAddrs; !slices.Equal(got, c.loopback) {
				t.Errorf("the plan has loopback addresses %v, want %v", got, c.loopback)
			}
			if got := r.NodeStatus.HealthAddrs; !slices.Equal(got, c.health) {
				t.Errorf("health checks on %v, want %v", got, c.health)
			}
		})
	}
}
