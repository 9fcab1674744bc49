package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// refresh works out again what all Services share, and touches those that it concerns.
func (p *Planner) refresh() {
	p.stale = false
	s := &p.settings
	own, warn := p.ownNode()
	facts := service.Facts{Node: s.Node, Zone: own.Zone}
	rules := Rules{
		MasqueradeAll: s.MasqueradeAll,
		PodSources:    Prefixes(s.PodSources),
		PodInterfaces: sorted(s.PodInterfaces),
		NodeAddrs:     sortedAddrs(slices.Concat(own.Addresses, s.LocalAddrs)),
	}
	if s.PodsOfNode {
		rules.PodSources = Prefixes(own.PodCIDRs)
	}
	// What a rule has become for one Service, it has become for all.
	if facts != p.facts || !slices.Equal(rules.NodeAddrs, p.rules.NodeAddrs) ||
		!slices.Equal(rules.PodSources, p.rules.PodSources) || !slices.Equal(rules.PodInterfaces, p.rules.PodInterfaces) {
		p.touchAll()
	}
	p.facts, p.rules = facts, rules
	global := Global{
		NodePortAddrs:  nodePortAddrs(s, own, rules.NodeAddrs),
		PodSources:     rules.PodSources,
		PodInterfaces:  rules.PodInterfaces,
		MasqueradeMark: s.MasqueradeMark,
	}
	for _, c := range p.cluster.CIDRs {
		global.ServiceCIDRs = append(global.ServiceCIDRs, c.CIDRs...)
	}
	global.ServiceCIDRs = Prefixes(global.ServiceCIDRs)
	p.builder.SetGlobal(global)
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
		p.Reloaded() // what a policy sees has changed, for all its Services
	}
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
