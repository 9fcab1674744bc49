package planner

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// refresh works out again what all Services share, and touches those that it concerns.
func (p *Planner) refresh() {
	p.stale = false
	s := &p.settings
	own, warn := p.ownNode()
	facts := service.NodeInfo{Node: s.Node, Zone: own.Zone}
	rules := rules{
		MasqueradeAll: s.MasqueradeAll,
		NodeAddrs:     sortedAddrs(slices.Concat(own.Addresses, s.LocalAddrs)),
	}
	rules.Global = p.global(own, rules.NodeAddrs)
	// What a rule has become for one Service, it has become for all.
	if facts != p.facts || !slices.Equal(rules.NodeAddrs, p.rules.NodeAddrs) ||
		!slices.Equal(rules.Global.PodSources, p.rules.Global.PodSources) ||
		!slices.Equal(rules.Global.PodInterfaces, p.rules.Global.PodInterfaces) {
		p.touchAll()
	}
	p.facts, p.rules = facts, rules
	p.builder.SetGlobal(rules.Global)
	for _, w := range warn {
		if !slices.Contains(p.warnings, w) {
			p.fresh = append(p.fresh, w)
		}
	}
	p.warnings = warn
	var zones []abi.Zone
	if !p.cluster.NodesPartial { // the own Node alone would be all of the demand
		zones = zoneTable(p.cluster.Nodes)
	}
	if partial := p.cluster.NodesPartial; partial != p.partial || !slices.Equal(zones, p.zones) {
		p.partial, p.zones = partial, zones
		p.PluginsReloaded() // what a policy sees has changed, for all its Services
	}
}

// global is the global part of the plan, of a node that has these addresses.
func (p *Planner) global(own *model.Node, nodeAddrs []netip.Addr) plan.Global {
	s := &p.settings
	g := plan.Global{
		NodePortAddrs:  nodePortAddrs(s, own, nodeAddrs),
		PodSources:     plan.NormalizePrefixes(s.PodSources),
		PodInterfaces:  sorted(s.PodInterfaces),
		MasqueradeMark: s.MasqueradeMark,
	}
	if s.PodsOfNode {
		g.PodSources = plan.NormalizePrefixes(own.PodCIDRs)
	}
	for _, c := range p.cluster.CIDRs {
		g.ServiceCIDRs = append(g.ServiceCIDRs, c.CIDRs...)
	}
	g.ServiceCIDRs = plan.NormalizePrefixes(g.ServiceCIDRs)
	return g
}

// ownNode is this node as the cluster knows it, its addresses completed by the settings, and what is missing of it.
func (p *Planner) ownNode() (*model.Node, []string) {
	s := &p.settings
	var warn []string
	known := p.cluster.Nodes[s.Node]
	own := &model.Node{Name: s.Node}
	if known != nil {
		*own = *known
	}
	if s.Primary.IsValid() {
		own.Addresses = append([]netip.Addr{s.Primary}, own.Addresses...)
	}
	lacks := func(what, so string) {
		if known == nil {
			what = "not found"
		}
		warn = append(warn, "Node "+s.Node+": "+what+": "+so)
	}
	if s.PodsOfNode && len(own.PodCIDRs) == 0 {
		lacks("no spec.podCIDRs", "no source counts as a Pod")
	}
	if s.NodePortPrefixes == nil && len(own.Addresses) == 0 {
		lacks("no address", "NodePorts answer on none")
	}
	return own, warn
}

// nodePortAddrs are the addresses that NodePorts answer on; never loopback.
func nodePortAddrs(s *Settings, own *model.Node, all []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		ofF := func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f }
		if s.NodePortPrefixes == nil {
			if mine := ofFamily(own.Addresses, f); len(mine) > 0 {
				out = append(out, mine[0])
			}
			continue
		}
		every := !slices.ContainsFunc(s.NodePortPrefixes, ofF)
		for _, a := range ofFamily(all, f) {
			if every || slices.ContainsFunc(s.NodePortPrefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
				out = append(out, a)
			}
		}
	}
	return slices.DeleteFunc(sortedAddrs(out), netip.Addr.IsLoopback)
}

// zoneTable counts Nodes and their allocatable CPU by zone, sorted by name. Nodes without a zone do not count.
func zoneTable(nodes map[string]*model.Node) []abi.Zone {
	by := map[string]*abi.Zone{}
	for _, n := range nodes {
		if n.Zone == "" {
			continue
		}
		z := by[n.Zone]
		if z == nil {
			z = &abi.Zone{Name: n.Zone}
			by[n.Zone] = z
		}
		z.Nodes++
		z.MilliCPU += uint64(n.MilliCPU)
	}
	out := make([]abi.Zone, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[name])
	}
	return out
}

func sorted(s []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(s)))
}

func sortedAddrs(a []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(a), netip.Addr.Compare))
}
