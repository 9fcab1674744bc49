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
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// TestNodeThatGoesOrIsIncompleteKeepsWhatWasLastKnown: NodePorts, the detection of Pods, the zone and bindings by labels do not
// depend on whether the Node object is there at the moment; a value that it has applies at once.
func TestNodeThatGoesOrIsIncompleteKeepsWhatWasLastKnown(t *testing.T) {
	whole := model.Node{Name: "n0", Zone: "z0", Labels: map[string]string{"pool": "a"}, Addresses: addrs("192.0.2.1", "2001:db8::1"), PodCIDRs: prefixes("10.244.1.0/24", "fd00:1::/64"), Ready: true}
	with := func(edit func(*model.Node)) *model.Node {
		n := whole
		edit(&n)
		return &n
	}
	type inForce struct {
		nodePorts, pods, zone, labels string
		eligible                      bool
	}
	all := inForce{"[192.0.2.1 2001:db8::1]", "[10.244.1.0/24 fd00:1::/64]", "z0", "map[pool:a]", true}
	but := func(edit func(*inForce)) inForce {
		f := all
		edit(&f)
		return f
	}
	for name, c := range map[string]struct {
		nodes []*model.Node // nil: deleted
		want  inForce
		warns string // part of the only warning; "" for none
	}{
		"it is there":                          {nil, all, ""},
		"deleted":                              {[]*model.Node{nil}, but(func(f *inForce) { f.eligible = false }), "not found: what was last known stays in force: addresses 192.0.2.1 2001:db8::1, podCIDRs 10.244.1.0/24 fd00:1::/64, zone z0, 1 labels; /healthz answers 503"},
		"deleted twice":                        {[]*model.Node{nil, nil}, but(func(f *inForce) { f.eligible = false }), "not found"},
		"registered again, not complete":       {[]*model.Node{nil, {Name: "n0"}}, but(func(f *inForce) { f.labels = "map[]" }), ""},
		"without addresses":                    {[]*model.Node{with(func(n *model.Node) { n.Addresses = nil })}, all, "no address: what was last known stays in force: addresses 192.0.2.1 2001:db8::1"},
		"without addresses and zone":           {[]*model.Node{with(func(n *model.Node) { n.Addresses, n.Zone = nil, "" })}, all, "no address: what was last known stays in force: addresses 192.0.2.1 2001:db8::1, zone z0"},
		"without podCIDRs":                     {[]*model.Node{with(func(n *model.Node) { n.PodCIDRs = nil })}, all, "no spec.podCIDRs: what was last known stays in force: podCIDRs 10.244.1.0/24 fd00:1::/64"},
		"without podCIDRs, then deleted":       {[]*model.Node{with(func(n *model.Node) { n.PodCIDRs = nil }), nil}, but(func(f *inForce) { f.eligible = false }), "not found"},
		"zone label removed while it lives":    {[]*model.Node{with(func(n *model.Node) { n.Zone = "" })}, but(func(f *inForce) { f.zone = "" }), ""},
		"zone label removed, then deleted":     {[]*model.Node{with(func(n *model.Node) { n.Zone = "" }), nil}, but(func(f *inForce) { f.zone, f.eligible = "", false }), "not found"},
		"labels removed while it lives":        {[]*model.Node{with(func(n *model.Node) { n.Labels = nil })}, but(func(f *inForce) { f.labels = "map[]" }), ""},
		"one family less while it lives":       {[]*model.Node{with(func(n *model.Node) { n.Addresses = addrs("192.0.2.1") })}, but(func(f *inForce) { f.nodePorts = "[192.0.2.1]" }), ""},
		"one podCIDR less while it lives":      {[]*model.Node{with(func(n *model.Node) { n.PodCIDRs = prefixes("fd00:1::/64") })}, but(func(f *inForce) { f.pods = "[fd00:1::/64]" }), ""},
		"comes back with other values":         {[]*model.Node{nil, {Name: "n0", Zone: "z9", Labels: map[string]string{"pool": "b"}, Addresses: addrs("192.0.2.9"), PodCIDRs: prefixes("10.244.9.0/24")}}, inForce{"[192.0.2.9]", "[10.244.9.0/24]", "z9", "map[pool:b]", true}, ""},
		"comes back with addresses, no zone":   {[]*model.Node{nil, {Name: "n0", Addresses: addrs("192.0.2.9"), PodCIDRs: prefixes("10.244.9.0/24")}}, inForce{"[192.0.2.9]", "[10.244.9.0/24]", "", "map[]", true}, ""},
		"comes back piece by piece":            {[]*model.Node{nil, {Name: "n0"}, {Name: "n0", PodCIDRs: prefixes("10.244.9.0/24")}, {Name: "n0", Zone: "z9", Addresses: addrs("192.0.2.9"), PodCIDRs: prefixes("10.244.9.0/24")}}, inForce{"[192.0.2.9]", "[10.244.9.0/24]", "z9", "map[]", true}, ""},
		"about to be deleted, with its values": {[]*model.Node{with(func(n *model.Node) { n.Leaving = true })}, but(func(f *inForce) { f.eligible = false }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(when string, p *Planner, r *Result) {
				t.Helper()
				g := &p.Current().Global
				got := inForce{fmt.Sprint(g.NodePortAddrs), fmt.Sprint(g.PodSources), p.Zone(), fmt.Sprint(PolicyNode("n0", p.LastNode()).Labels), r.NodeStatus.Eligible}
				if got != c.want {
					t.Errorf("%s: in force %+v, want %+v", when, got, c.want)
				}
				if c.warns == "" && name != "registered again, not complete" && len(p.NodeWarnings()) > 0 || c.warns != "" && (len(p.NodeWarnings()) != 1 || !strings.Contains(p.NodeWarnings()[0], c.warns)) {
					t.Errorf("%s: warnings %q, want %q", when, p.NodeWarnings(), c.warns)
				}
			}
			settings := Settings{Node: "n0", PodsOfNode: true}
			p := plannerWithNode(settings, &whole)
			now := time.Unix(1000, 0)
			r := p.PlanNow(now)
			for _, n := range c.nodes {
				p.Apply([]model.Change{nodeChange(n)})
				now = now.Add(time.Second)
				r = p.PlanNow(now)
			}
			check("running", p, &r)

			// A restart knows as much.
			saved, err := p.Save(policy.Epoch{})
			if err != nil {
				t.Fatal(err)
			}
			var is *model.Node
			if len(c.nodes) > 0 {
				is = c.nodes[len(c.nodes)-1]
			} else {
				is = &whole
			}
			p = plannerWithNode(settings, nil)
			if _, _, err := p.Restore(saved, policy.Epoch{}); err != nil {
				t.Fatal(err)
			}
			p.Apply([]model.Change{nodeChange(is)})
			r = p.PlanNow(now)
			check("restarted", p, &r)
		})
	}
}

// TestNodeComesAndGoesBeforeTheFirstPlan: it is known for a moment of the initial sync only.
func TestNodeComesAndGoesBeforeTheFirstPlan(t *testing.T) {
	p := plannerWithNode(Settings{Node: "n0"}, &model.Node{Name: "n0", Addresses: addrs("192.0.2.1")})
	p.Apply([]model.Change{nodeChange(nil)})
	p.PlanNow(time.Unix(1000, 0))
	if got := p.Current().Global.NodePortAddrs; !slices.Equal(got, addrs("192.0.2.1")) {
		t.Errorf("NodePorts at %v", got)
	}
}

// TestLastKnownNodeOfADamagedOrForeignCheckpoint is as if there was none, and takes over nothing that is not an address.
func TestLastKnownNodeOfADamagedOrForeignCheckpoint(t *testing.T) {
	const good = `{"version":1,"epoch":{"boot":"","at":0},"pools":[],"node":{"name":"n0","zone":"z0","addresses":["192.0.2.1"],"podCIDRs":["10.244.1.0/24"]}}`
	for name, c := range map[string]struct {
		text  string
		want  []netip.Addr
		fails bool
	}{
		"good":                   {good, addrs("192.0.2.1"), false},
		"none":                   {"", nil, true},
		"cut off":                {good[:len(good)-20], nil, true},
		"of another version":     {strings.Replace(good, `"version":1`, `"version":9`, 1), nil, true},
		"of an older sluice":     {`{"version":1,"epoch":{"boot":"","at":0},"pools":[]}`, nil, false},
		"of another node":        {strings.Replace(good, `"n0"`, `"n1"`, 1), nil, false},
		"not an address":         {strings.Replace(good, "192.0.2.1", "192.0.2.300", 1), nil, true},
		"an empty address":       {strings.Replace(good, `"192.0.2.1"`, `"","192.0.2.1"`, 1), addrs("192.0.2.1"), false},
		"an address with a zone": {strings.Replace(good, `"192.0.2.1"`, `"fe80::1%eth0","192.0.2.1"`, 1), addrs("192.0.2.1"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := plannerWithNode(Settings{Node: "n0", PodsOfNode: true, MasqueradeMark: 0x4000}, nil)
			if _, _, err := p.Restore([]byte(c.text), policy.Epoch{}); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
			r := p.PlanNow(time.Unix(1000, 0))
			if got := p.Current().Global.NodePortAddrs; !slices.Equal(got, c.want) {
				t.Errorf("NodePorts at %v, want %v", got, c.want)
			}
			if err := plan.Validate(p.Current()); err != nil {
				t.Error(err)
			}
			if refused := strings.Contains(fmt.Sprint(r.Warnings), "NodePorts are not served: connections to them are refused"); refused != (c.want == nil) {
				t.Errorf("warnings %q", r.Warnings)
			}
		})
	}
}
