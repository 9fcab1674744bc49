package planner_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// oracle determines what a Service proxy must do with a connection directly from the objects. It is a second
// implementation of the rules, one sentence after the other, that shares no code with host/core/eligibility and host/core/plan.
type oracle struct {
	services []*model.Service
	slices   []*model.EndpointSlice
	cidrs    []netip.Prefix
	node     *model.Node
	set      planner.Settings
	held     *heldOracle // nil: no policy holds endpoints
}

type verdict struct {
	what      string // DNAT, REJECT, DROP, NONE
	owner     string
	endpoints map[netip.AddrPort]bool // masqueraded?
	case_     string                  // which path led here, for coverage
}

func newOracle(c *testgen.Cluster) *oracle {
	o := &oracle{set: c.Settings}
	for _, ch := range c.Changes {
		switch {
		case ch.Service != nil:
			o.services = append(o.services, ch.Service)
		case ch.Slice != nil:
			o.slices = append(o.slices, ch.Slice)
		case ch.CIDR != nil:
			o.cidrs = append(o.cidrs, ch.CIDR.CIDRs...)
		case ch.Node != nil && ch.Node.Name == c.Settings.Node:
			o.node = ch.Node
		}
	}
	return o
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// served: a family of a Service without a ClusterIP of it is ignored.
func served(s *model.Service, family model.Family) bool {
	for _, a := range s.ClusterIPs {
		if model.FamilyOf(a) == family {
			return true
		}
	}
	return false
}

func (o *oracle) ownAddresses() []netip.Addr {
	return slices.Concat(o.node.Addresses, o.set.LocalAddrs)
}

// answersNodePorts: by default the Node's first address of a family; else those that a range of the family selects, all
// when no range is of the family; never loopback.
func (o *oracle) answersNodePorts(to netip.Addr) bool {
	if to.IsLoopback() || !slices.Contains(o.ownAddresses(), to) {
		return false
	}
	if o.set.NodePortPrefixes == nil || o.set.NodePortPrimary {
		for _, a := range o.node.Addresses {
			if a.Is4() == to.Is4() {
				if a == to {
					return true
				}
				break
			}
		}
	}
	if o.set.NodePortPrefixes == nil {
		return false
	}
	var ofFamily []netip.Prefix
	for _, p := range o.set.NodePortPrefixes {
		if p.Addr().Is4() == to.Is4() {
			ofFamily = append(ofFamily, p)
		}
	}
	return len(ofFamily) == 0 && !o.set.NodePortPrimary || inAny(ofFamily, to)
}

func (o *oracle) answer(f plan.Flow) verdict {
	family := model.FamilyOf(f.To.Addr())
	foreign := ""
	for _, s := range o.services {
		if !served(s, family) {
			continue
		}
		for _, p := range s.Ports {
			if p.Protocol != f.Protocol || p.Port != f.To.Port() {
				continue
			}
			switch {
			case slices.Contains(s.ClusterIPs, f.To.Addr()):
				return o.clusterIP(s, p, f)
			case slices.Contains(s.LoadBalancerIPs, f.To.Addr()):
				if o.guarded(s, f) {
					return verdict{what: "DROP", owner: portName(s, p), case_: "source ranges"}
				}
				return o.external("load balancer", s, p, f)
			case slices.Contains(s.ExternalIPs, f.To.Addr()) && o.isForeign(s, f.To.Addr()):
				foreign = ", external IP of another"
			case slices.Contains(s.ExternalIPs, f.To.Addr()):
				return o.external("external IP", s, p, f)
			}
		}
	}
	if o.answersNodePorts(f.To.Addr()) {
		for _, s := range o.services {
			for _, p := range s.Ports {
				if served(s, family) && p.NodePort != 0 && p.NodePort == f.To.Port() && p.Protocol == f.Protocol {
					return o.external("node port", s, p, f)
				}
			}
		}
	}
	for _, s := range o.services {
		if slices.Contains(s.ClusterIPs, f.To.Addr()) && len(s.Ports) > 0 {
			return verdict{what: "REJECT", case_: "wrong port of a ClusterIP" + foreign}
		}
	}
	if inAny(o.cidrs, f.To.Addr()) {
		return verdict{what: "DROP", case_: "unallocated"}
	}
	return verdict{what: "NONE", case_: "none" + foreign}
}

// isForeign: an address that was allocated to another Service as its ClusterIP or load balancer address is not an external IP,
// at any port, unless it is this node's.
func (o *oracle) isForeign(s *model.Service, a netip.Addr) bool {
	return slices.ContainsFunc(o.services, func(other *model.Service) bool {
		return other != s && (slices.Contains(other.ClusterIPs, a) || slices.Contains(other.LoadBalancerIPs, a) && !slices.Contains(o.ownAddresses(), a))
	})
}

// guarded: not in a range is dropped, Pods too. When a range has an address of this node, the load balancer's addresses
// may connect too. Ranges of the other family mean nothing; without ranges, everyone may.
func (o *oracle) guarded(s *model.Service, f plan.Flow) bool {
	var ranges []netip.Prefix
	nodeMay := false
	for _, r := range s.SourceRanges {
		if r.Addr().Is4() != f.From.Is4() {
			continue
		}
		ranges = append(ranges, r)
		for _, a := range o.ownAddresses() {
			nodeMay = nodeMay || r.Contains(a)
		}
	}
	if len(ranges) == 0 || inAny(ranges, f.From) {
		return false
	}
	return !(nodeMay && slices.Contains(s.LoadBalancerIPs, f.From))
}

// isPod checks the source range and the input interface.
func (o *oracle) isPod(f plan.Flow) bool {
	for _, name := range o.set.PodInterfaces {
		stem, wild := strings.CutSuffix(name, "*")
		if f.Interface == name || wild && f.Interface != "" && strings.HasPrefix(f.Interface, stem) {
			return true
		}
	}
	return inAny(o.set.PodSources, f.From)
}

func (o *oracle) isNode(f plan.Flow) bool {
	return f.From.IsLoopback() || slices.Contains(o.ownAddresses(), f.From)
}

func (o *oracle) clusterIP(s *model.Service, p model.ServicePort, f plan.Flow) verdict {
	cluster, local, anywhere := o.lists(s, p, model.FamilyOf(f.To.Addr()))
	list, name := cluster, "ClusterIP"
	if s.InternalLocal {
		list, name = local, "ClusterIP, internal Local"
	}
	detector := len(o.set.PodInterfaces) > 0
	for _, r := range o.set.PodSources {
		detector = detector || r.Addr().Is4() == f.From.Is4()
	}
	masquerade := o.set.MasqueradeAll || detector && !o.isPod(f)
	return o.to(name, s, p, f, list, anywhere, masquerade)
}

func (o *oracle) external(kind string, s *model.Service, p model.ServicePort, f plan.Flow) verdict {
	cluster, local, anywhere := o.lists(s, p, model.FamilyOf(f.To.Addr()))
	switch {
	case !s.ExternalLocal:
		return o.to(kind, s, p, f, cluster, anywhere, true)
	case o.isPod(f):
		return o.to(kind+", Local, from a Pod", s, p, f, cluster, anywhere, false)
	case o.isNode(f):
		return o.to(kind+", Local, from the node", s, p, f, cluster, anywhere, true)
	}
	return o.to(kind+", Local, from outside", s, p, f, local, anywhere, false)
}

func (o *oracle) to(path string, s *model.Service, p model.ServicePort, f plan.Flow, list []netip.AddrPort, anywhere, masquerade bool) verdict {
	v := verdict{what: "DNAT", owner: portName(s, p), endpoints: map[netip.AddrPort]bool{}, case_: path}
	switch {
	case !anywhere:
		v.what = "REJECT"
	case len(list) == 0:
		v.what = "DROP"
	}
	for _, e := range list {
		kept := slices.ContainsFunc(o.set.NoMasqueradeCIDRs, func(r netip.Prefix) bool { return r.Contains(e.Addr()) })
		v.endpoints[e] = masquerade && !kept || e.Addr() == f.From
	}
	v.case_ += " " + v.what
	return v
}

func portName(s *model.Service, p model.ServicePort) string {
	if p.Name == "" {
		return s.Name.Namespace + "/" + s.Name.Name
	}
	return s.Name.Namespace + "/" + s.Name.Name + ":" + p.Name
}

// lists returns the endpoints of the cluster pool and of the local pool of a Service port, and whether any node has an eligible
// one.
func (o *oracle) lists(s *model.Service, p model.ServicePort, family model.Family) (cluster, local []netip.AddrPort, anywhere bool) {
	found := o.endpoints(s, p, family)
	return o.choose(found, o.held.held(found, func(oracleEndpoint) bool { return true }), o.held.held(found, o.here))
}

type oracleEndpoint struct {
	addr netip.AddrPort
	model.SliceEndpoint
}

func (o *oracle) here(e oracleEndpoint) bool { return e.Node == o.set.Node }

// endpoints returns the endpoints of a Service port by address.
func (o *oracle) endpoints(s *model.Service, p model.ServicePort, family model.Family) map[netip.AddrPort]oracleEndpoint {
	found := map[netip.AddrPort]oracleEndpoint{}
	for _, sl := range o.slices {
		if sl.Service != s.Name || sl.Family != family {
			continue
		}
		for _, sp := range sl.Ports {
			if sp.Name != p.Name || sp.Protocol != p.Protocol {
				continue
			}
			for _, e := range sl.Endpoints {
				if e.Addr == netip.MustParseAddr("240.0.0.9") || inAny(o.cidrs, e.Addr) { // reserved, or of a Service
					continue
				}
				at := netip.AddrPortFrom(e.Addr, sp.Port)
				// The same endpoint twice: one that does not terminate wins, of two such a ready one, then one here.
				old, twice := found[at]
				worth := func(e model.SliceEndpoint) (n int) {
					for _, good := range []bool{!e.Terminating, e.Ready, e.Node != "" && e.Node == o.set.Node, e.Serving} {
						if n *= 2; good {
							n++
						}
					}
					return n
				}
				if !twice || worth(e) > worth(old.SliceEndpoint) {
					found[at] = oracleEndpoint{at, e}
				}
			}
		}
	}
	return found
}

// choose: an endpoint that is held in a pool is a ready one there.
func (o *oracle) choose(found map[netip.AddrPort]oracleEndpoint, heldCluster, heldLocal map[netip.AddrPort]bool) (cluster, local []netip.AddrPort, anywhere bool) {
	var ready, readyHere, leaving []oracleEndpoint
	for at, e := range found {
		if e.Ready || heldCluster[at] {
			ready = append(ready, e)
		}
		if o.here(e) && (e.Ready || heldLocal[at]) {
			readyHere = append(readyHere, e)
		}
		if !e.Ready && e.Serving && e.Terminating {
			leaving = append(leaving, e)
		}
	}
	addrs := func(list []oracleEndpoint, keep func(oracleEndpoint) bool) (out []netip.AddrPort) {
		for _, e := range list {
			if keep(e) {
				out = append(out, e.addr)
			}
		}
		return out
	}
	everyone := func(oracleEndpoint) bool { return true }
	// Hints: for this node when every ready endpoint has such and one names it, else for its zone in the same way.
	forNode := func(e oracleEndpoint) bool { return slices.Contains(e.ForNodes(), o.set.Node) }
	forZone := func(e oracleEndpoint) bool { return o.node.Zone != "" && slices.Contains(e.ForZones(), o.node.Zone) }
	allNodes := !slices.ContainsFunc(ready, func(e oracleEndpoint) bool { return len(e.ForNodes()) == 0 })
	allZones := !slices.ContainsFunc(ready, func(e oracleEndpoint) bool { return len(e.ForZones()) == 0 })
	keep := everyone
	if allNodes && len(addrs(ready, forNode)) > 0 {
		keep = forNode
	} else if allZones && len(addrs(ready, forZone)) > 0 {
		keep = forZone
	}
	if cluster = addrs(ready, keep); len(ready) == 0 {
		cluster = addrs(leaving, everyone)
	}
	if local = addrs(readyHere, everyone); len(local) == 0 {
		local = addrs(leaving, o.here)
	}
	return cluster, local, len(ready)+len(readyHere)+len(leaving) > 0
}

// traced converts the outcome of plan to a verdict of the oracle.
func traced(o plan.Outcome) verdict {
	v := verdict{what: "NONE", endpoints: map[netip.AddrPort]bool{}}
	if o.Matched {
		v.what = map[plan.Verdict]string{plan.Forward: "DNAT", plan.Reject: "REJECT", plan.Drop: "DROP"}[o.Verdict]
	}
	if o.Frontend != nil {
		v.owner = o.Frontend.Owner.String()
	}
	for _, c := range o.Candidates {
		v.endpoints[c.Addr] = c.Masquerade
	}
	return v
}

func TestTracesMatchOracle(t *testing.T) {
	clusters, flows := 6000, 60
	if testing.Short() {
		clusters = 150
	}
	cases := map[string]int{}
	for seed := range uint64(clusters) {
		c := testgen.NewCluster(seed, testgen.ClusterOptions{})
		p := planner.New(c.Settings, nil)
		p.Replace(c.Snapshot())
		if step := p.PlanNow(time.Unix(1_700_000_000, 0)); len(step.Errors) > 0 {
			t.Fatalf("seed %d: %v", seed, step.Errors)
		}
		if err := plan.Validate(p.Current()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want, got := newOracle(c), p.Current().Tracer(p.NodeAddrs())
		for range flows {
			f := c.Flow()
			w, g := want.answer(f), got.Trace(f)
			cases[w.case_]++
			if diff := w.diff(traced(g)); diff != "" {
				t.Fatalf("seed %d: %s → %s/%s: %s\nby the rules: %s\n%s\n%s", seed, f.From, f.To, f.Protocol, diff, w.case_, g.Why, plan.Format(p.Current()))
			}
			for _, e := range g.Candidates {
				if e.Weight != 1 || e.Share != 1/float64(len(g.Candidates)) {
					t.Fatalf("seed %d: %s → %s/%s: %+v of %d without a policy", seed, f.From, f.To, f.Protocol, e, len(g.Candidates))
				}
			}
			if o := p.Current().Trace(f, p.NodeAddrs()); o.Why != g.Why || o.Verdict != g.Verdict || o.Matched != g.Matched {
				t.Fatalf("seed %d: Plan.Trace returned %+v, the Tracer %+v", seed, o, g)
			}
		}
	}
	for _, kind := range []string{"external IP", "load balancer", "node port"} {
		for _, path := range []string{"", ", Local, from a Pod", ", Local, from the node", ", Local, from outside"} {
			for _, what := range []string{" DNAT", " REJECT"} {
				wantCase(t, cases, kind+path+what)
			}
		}
		wantCase(t, cases, kind+", Local, from outside DROP")
	}
	for _, name := range []string{"ClusterIP DNAT", "ClusterIP REJECT", "ClusterIP, internal Local DNAT", "ClusterIP, internal Local REJECT",
		"ClusterIP, internal Local DROP", "source ranges", "wrong port of a ClusterIP", "unallocated", "none",
		"wrong port of a ClusterIP, external IP of another", "none, external IP of another"} {
		wantCase(t, cases, name)
	}
	t.Logf("flows by what became of them: %v", cases)
}

// wantCase: a path that no flow took was not compared.
func wantCase(t *testing.T, cases map[string]int, name string) {
	t.Helper()
	if cases[name] < 10 {
		t.Errorf("%d flows came to %q", cases[name], name)
	}
}

func (v verdict) diff(got verdict) string {
	if v.what != got.what || v.owner != got.owner {
		return fmt.Sprintf("got %s %s, want %s %s", got.what, got.owner, v.what, v.owner)
	}
	if v.what != "DNAT" {
		v.endpoints = map[netip.AddrPort]bool{}
	}
	if fmt.Sprint(v.endpoints) != fmt.Sprint(got.endpoints) {
		return fmt.Sprintf("got endpoints %v, want %v (true: masqueraded)", got.endpoints, v.endpoints)
	}
	return ""
}
