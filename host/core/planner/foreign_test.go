package planner

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestModesThatBindAddressesLeaveThoseOfOthersAlone: to add the address of another host to this one takes that host away from it.
// A Service that claims it is told, and gets it when it is nobody's any more.
func TestModesThatBindAddressesLeaveThoseOfOthersAlone(t *testing.T) {
	tenant := model.Name{Namespace: "tenant", Name: "web"}
	other := func(edit func(*model.Node)) []model.Change {
		n := &model.Node{Name: "n9", Addresses: addrs("192.0.2.9", "2001:db8:9::9"), PodCIDRs: prefixes("10.244.9.0/24", "fd00:9::/64")}
		edit(n)
		return []model.Change{{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n}}
	}
	same := func(*model.Node) {}
	apiServer := func(at string) []model.Change {
		s := slice(apiServerService, 0)
		s.Ports = []model.SlicePort{{Name: "https", Protocol: model.TCP, Port: 6443}}
		s.Endpoints = []model.SliceEndpoint{{Addr: netip.MustParseAddr(at), Ready: true, Serving: true}}
		return []model.Change{{Kind: model.SliceKind, Name: s.Name, Slice: s}}
	}
	type is struct {
		changes []model.Change
		hosts   []netip.Addr
		ranges  []netip.Prefix
	}
	for name, c := range map[string]struct {
		at    string
		is    is
		owner string // "": the Service may have it
	}{
		"nobody's":                        {"203.0.113.1", is{changes: other(same)}, ""},
		"nobody's, IPv6":                  {"2001:db8::1", is{changes: other(same)}, ""},
		"another Node's":                  {"192.0.2.9", is{changes: other(same)}, "a Node"},
		"another Node's, IPv6":            {"2001:db8:9::9", is{changes: other(same)}, "a Node"},
		"this Node's":                     {"192.0.2.1", is{changes: other(same)}, ""},
		"this node's, not in its Node":    {"192.0.2.2", is{}, ""},
		"two Nodes', one of them this":    {"192.0.2.1", is{changes: other(func(n *model.Node) { n.Addresses = addrs("192.0.2.1") })}, ""},
		"a Node's that has another now":   {"192.0.2.9", is{changes: append(other(same), other(func(n *model.Node) { n.Addresses = addrs("192.0.2.10") })...)}, ""},
		"a Node's that is gone":           {"192.0.2.9", is{changes: append(other(same), model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n9"}})}, ""},
		"in another Node's podCIDR":       {"10.244.9.7", is{changes: other(same)}, "the Pods, in 10.244.9.0/24"},
		"in another Node's podCIDR, IPv6": {"fd00:9::7", is{changes: other(same)}, "the Pods, in fd00:9::/64"},
		"in this Node's podCIDR":          {"10.244.1.7", is{}, "the Pods, in 10.244.1.0/24"},
		"beside the podCIDRs":             {"10.244.8.7", is{changes: other(same)}, ""},
		"in clusterCIDR":                  {"10.100.3.4", is{ranges: prefixes("10.100.0.0/16")}, "the Pods, in 10.100.0.0/16"},
		"an API server's":                 {"192.0.2.5", is{changes: apiServer("192.0.2.5")}, "an API server"},
		"an API server's, IPv6":           {"2001:db8::5", is{changes: apiServer("2001:db8::5")}, "an API server"},
		"an API server's that has moved":  {"192.0.2.5", is{changes: append(apiServer("192.0.2.5"), apiServer("192.0.2.6")...)}, ""},
		"a gateway":                       {"192.0.2.254", is{hosts: addrs("192.0.2.254", "fe80::1")}, "a gateway or an API server"},
		"a gateway of IPv6":               {"2001:db8::ffff", is{hosts: addrs("2001:db8::ffff")}, "a gateway or an API server"},
	} {
		for _, kind := range []plan.Kind{plan.ExternalIP, plan.LoadBalancer} {
			for _, order := range []string{"owner first", "Service first"} {
				for _, binds := range []bool{true, false} {
					t.Run(fmt.Sprint(name, ", ", kind, ", ", order, ", binds ", binds), func(t *testing.T) {
						p := New(Settings{Node: "n0", BindsAddresses: binds, PodRanges: c.is.ranges, LocalAddrs: addrs("192.0.2.1", "192.0.2.2"), MasqueradeMark: 1}, nativePlugins)
						p.Apply([]model.Change{{Kind: model.Synced}, nodeChange(&model.Node{Name: "n0", Addresses: addrs("192.0.2.1", "2001:db8::11"), PodCIDRs: prefixes("10.244.1.0/24")})})
						svc := &model.Service{Name: tenant, ClusterIPs: addrs("10.96.0.1", "fd00:10:96::1"), Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 443}}}
						if kind == plan.ExternalIP {
							svc.ExternalIPs = addrs(c.at, "203.0.113.200")
						} else {
							svc.LoadBalancerIPs = addrs(c.at, "203.0.113.200")
						}
						claims := func() {
							p.Apply([]model.Change{{Kind: model.ServiceKind, Name: tenant, Service: svc}})
							p.PlanNow(time.Unix(1000, 0))
						}
						owns := func() {
							p.SetHosts(c.is.hosts)
							for i := range c.is.changes {
								p.Apply(c.is.changes[i : i+1])
								p.PlanNow(time.Unix(1000, 0))
							}
							p.PlanNow(time.Unix(1000, 0))
						}
						if order == "owner first" {
							owns()
							claims()
						} else {
							claims()
							owns()
						}
						has := func(at string) bool {
							return p.Current().Frontends[plan.Key{Addr: netip.MustParseAddr(at), Port: 443, Protocol: model.TCP}] != nil
						}
						owner := c.owner
						if !binds {
							owner = ""
						}
						if has(c.at) != (owner == "") || !has("203.0.113.200") || !has("10.96.0.1") {
							t.Fatalf("frontend at %s: %v\n%s", c.at, has(c.at), plan.Format(p.Current()))
						}
						conflicts := p.Conflicts()
						if owner == "" && len(conflicts) > 0 || owner != "" && (len(conflicts) != 1 || !strings.Contains(conflicts[0].Why, "the address belongs to "+owner+": mode ipvs")) {
							t.Errorf("conflicts %v, want %q", conflicts, owner)
						}
						if x, err := p.Explain(tenant); err != nil || len(x.Conflicts) != len(conflicts) {
							t.Errorf("explain: %v, %v", x.Conflicts, err)
						}
						// Another mode serves it, and back.
						s := p.settings
						for _, s.BindsAddresses = range []bool{false, binds} {
							p.Configure(s)
							p.PlanNow(time.Unix(1001, 0))
							if has(c.at) != (!s.BindsAddresses || owner == "") {
								t.Errorf("binds %v: frontend at %s: %v", s.BindsAddresses, c.at, has(c.at))
							}
						}
					})
				}
			}
		}
	}
}
