package planner

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// node is what all Services share of this node and of the cluster. While it is not dirty, it follows from settings and cluster.
type node struct {
	*world
	nodeInfo     eligibility.NodeInfo
	rules        rules
	zones        []abi.Zone
	nodesPartial bool   // zones is empty because not all Nodes of the cluster have been read
	index, count uint32 // see policy.Input
	warnings     []nodeWarning
	clusterIPs   clusterIPs
	foreign      foreign
	nodeDirty    bool
}

// refresh recomputes the state that Services share, and schedules the Services that it affects.
func (n *node) refresh() {
	n.nodeDirty = false
	s := &n.settings
	own, warn := n.ownNode()
	if s.Policies.SetNode(PolicyNode(s.Node, n.LastNode())) {
		n.queue.Begin(true)
	}
	nodeInfo := eligibility.NodeInfo{Node: s.Node, Zone: own.Zone, MaxEndpoints: s.ServiceLimits.Endpoints, Endpoints: n.nodeInfo.Endpoints}
	r := rules{
		MasqueradeAll: s.MasqueradeAll,
		NodeAddrs:     sortedAddrs(slices.Concat(own.Addresses, s.LocalAddrs)),
		Caps:          n.rules.Caps,
	}
	r.Global = n.global(own, r.NodeAddrs)
	n.clusterIPs.follow(n.cluster)
	allowed := s.AllowedEndpoints(own)
	if e := nodeInfo.Endpoints; e == nil || !slices.Equal(e.ServiceCIDRs, r.Global.ServiceCIDRs) || !slices.Equal(e.Allowed, allowed) {
		nodeInfo.Endpoints = &eligibility.EndpointRules{ServiceCIDRs: r.Global.ServiceCIDRs, ClusterIP: n.clusterIPs.contains, Allowed: allowed}
	}
	// These apply to every Service.
	if nodeInfo != n.nodeInfo || !slices.Equal(r.NodeAddrs, n.rules.NodeAddrs) ||
		!slices.Equal(r.Global.PodSources, n.rules.Global.PodSources) ||
		!slices.Equal(r.Global.PodInterfaces, n.rules.Global.PodInterfaces) {
		n.queue.Begin(true)
	}
	if !slices.Equal(r.NodeAddrs, n.rules.NodeAddrs) {
		n.claims.SetShared(r.NodeAddrs)
	}
	n.refreshForeign(own)
	n.nodeInfo, n.rules = nodeInfo, r
	n.claims.SetGlobal(r.Global)
	for _, w := range warn {
		if !slices.Contains(n.warnings, w) {
			n.newWarnings = append(n.newWarnings, w.text)
		}
	}
	n.warnings = warn
	var zones []abi.Zone
	var index, count uint32
	if !n.cluster.NodesPartial { // this Node alone would look like all of the demand
		zones = ZoneTable(n.cluster.Nodes)
		index, count = nodeIndex(n.cluster.Nodes, s.Node)
	}
	if partial := n.cluster.NodesPartial; partial != n.nodesPartial || !slices.Equal(zones, n.zones) || index != n.index || count != n.count {
		n.nodesPartial, n.zones, n.index, n.count = partial, zones, index, count
		n.queue.Begin(false) // the input of all policies has changed
	}
}

// PolicyNode returns what bindings ask of this node, given its Node; nil: it is not known.
func PolicyNode(name string, node *model.Node) policy.Node {
	if node == nil {
		return policy.Node{Name: name}
	}
	return policy.Node{Name: name, Labels: node.Labels, Known: true}
}

// global returns the global part of the plan.
func (n *node) global(own *model.Node, nodeAddrs []netip.Addr) plan.Global {
	s := &n.settings
	g := plan.Global{
		NodePortAddrs:  nodePortAddrs(s, own, nodeAddrs),
		LocalhostAddrs: s.LocalhostAddrs(),
		PodSources:     plan.NormalizePrefixes(s.PodSources),
		PodInterfaces:  sortedUnique(s.PodInterfaces),
		NoMasquerade:   plan.NormalizePrefixes(s.NoMasqueradeCIDRs),
		MasqueradeMark: s.MasqueradeMark,
	}
	if s.PodsOfNode {
		g.PodSources = plan.NormalizePrefixes(own.PodCIDRs)
	}
	g.ServiceCIDRs = serviceCIDRs(n.cluster)
	return g
}

func serviceCIDRs(c *model.Snapshot) (out []netip.Prefix) {
	for _, o := range c.CIDRs {
		out = append(out, o.CIDRs...)
	}
	return plan.NormalizePrefixes(out)
}

// nodePortAddrs returns the addresses that NodePorts listen on; never loopback.
func nodePortAddrs(s *Settings, own *model.Node, all []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		ofF := func(p netip.Prefix) bool { return model.FamilyOf(p.Addr()) == f }
		if s.NodePortPrefixes == nil || s.NodePortPrimary {
			if mine := ofFamily(own.Addresses, f); len(mine) > 0 {
				out = append(out, mine[0])
			}
		}
		if s.NodePortPrefixes == nil {
			continue
		}
		every := !s.NodePortPrimary && !slices.ContainsFunc(s.NodePortPrefixes, ofF)
		for _, a := range ofFamily(all, f) {
			if every || slices.ContainsFunc(s.NodePortPrefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
				out = append(out, a)
			}
		}
	}
	return slices.DeleteFunc(sortedAddrs(out), netip.Addr.IsLoopback)
}

// LocalhostAddrs returns the loopback addresses on which NodePorts are served, which is done by a proxy in user space (KEP-6032):
// 127.0.0.1 and ::1 if a prefix of loopback addresses contains them, and a prefix of one address. Sorted.
func (s *Settings) LocalhostAddrs() (out []netip.Addr) {
	for _, r := range s.NodePortPrefixes {
		if !r.Addr().IsLoopback() {
			continue
		}
		for _, a := range [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			if r.Contains(a) {
				out = append(out, a)
			}
		}
		if r.IsSingleIP() {
			out = append(out, r.Addr())
		}
	}
	return sortedAddrs(out)
}

// LocalhostAddrs returns Settings.LocalhostAddrs of the planner's settings.
func (w *world) LocalhostAddrs() []netip.Addr { return w.settings.LocalhostAddrs() }

// ZoneTable counts Nodes and their allocatable CPU by zone, sorted by name. Nodes without a zone are left out.
func ZoneTable(nodes map[string]*model.Node) []abi.Zone {
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

// nodeIndex returns the position of a Node among the sorted names of the Nodes that are ready, and the number of those. A Node
// that is not ready gets the position that it would have, so that it does not change with the Node's own readiness.
func nodeIndex(nodes map[string]*model.Node, own string) (index, count uint32) {
	for name, n := range nodes {
		if n.Ready {
			if count++; name < own {
				index++
			}
		}
	}
	return index, count
}

func sortedUnique(s []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(s)))
}

func sortedAddrs(a []netip.Addr) []netip.Addr {
	return slices.Compact(slices.SortedFunc(slices.Values(a), netip.Addr.Compare))
}

// maxAPIServers bounds the endpoints that are reserved, see SetReserved.
const maxAPIServers = 1000

// apiServerKeys returns where API servers listen according to the slices of their Service.
func apiServerKeys(list []*model.EndpointSlice) (keys []plan.Key) {
	for _, s := range list {
		for _, port := range s.Ports {
			for i := range s.Endpoints {
				if len(keys) == maxAPIServers {
					return keys
				}
				keys = append(keys, plan.Key{Addr: s.Endpoints[i].Addr, Port: port.Port, Protocol: port.Protocol})
			}
		}
	}
	return keys
}

// NodeAddrs returns this node's own addresses as of the last Plan.
func (n *node) NodeAddrs() plan.NodeAddrs { return n.rules.NodeAddrs }

// SetLocalAddrs replaces Settings.LocalAddrs from the next Plan on.
func (n *node) SetLocalAddrs(addrs []netip.Addr) { n.setAddrs(&n.settings.LocalAddrs, addrs) }

// SetHosts replaces Settings.Hosts from the next Plan on.
func (n *node) SetHosts(addrs []netip.Addr) { n.setAddrs(&n.settings.Hosts, addrs) }

func (n *node) setAddrs(setting *[]netip.Addr, addrs []netip.Addr) {
	if !slices.Equal(*setting, addrs) {
		*setting, n.nodeDirty = addrs, true
	}
}

// refreshForeign takes in what has changed of the addresses of others.
func (n *node) refreshForeign(own *model.Node) {
	s := &n.settings
	n.foreign.set(sortedAddrs(s.Hosts), slices.Concat(s.PodSources, s.PodRanges, own.PodCIDRs))
	if s.BindsAddresses == n.foreign.asked && !(s.BindsAddresses && n.foreign.dirty) {
		return
	}
	n.foreign.asked, n.foreign.dirty = s.BindsAddresses, false
	if s.BindsAddresses {
		n.claims.SetForeign(n.foreign.owner)
	} else {
		n.claims.SetForeign(nil)
	}
}

// NodeWarnings returns, as of the last Plan, what this node's Node lacks that it had, and what is in force instead.
func (n *node) NodeWarnings() (out []string) {
	for _, w := range n.warnings {
		if w.kept {
			out = append(out, w.text)
		}
	}
	return out
}

// Zone returns the zone of this node as of the last Plan; "": it has none.
func (n *node) Zone() string { return n.nodeInfo.Zone }

// input returns the input of the policy of a Service port, except for the pool.
func (n *node) input(svc *model.Service, port *eligibility.Port) policy.Input {
	return policy.Input{
		Service: svc, Port: port, Node: n.nodeInfo.Node, Zone: n.nodeInfo.Zone, Zones: n.zones,
		NodesUnknown: n.nodesPartial, NodeIndex: n.index, NodeCount: n.count,
		Pods:   policy.Pods{All: n.cluster.Pods, Pending: n.cluster.PodsOf(svc.Name) == model.PodsPending},
		Labels: policy.LabelsOf(n.cluster, svc.Name),
	}
}

// newNodeStatus returns what health checks report of this node.
func (n *node) newNodeStatus() NodeStatus {
	node := n.cluster.Nodes[n.settings.Node]
	status := NodeStatus{Eligible: node != nil && !node.Leaving}
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		some, all := false, false
		for _, r := range n.settings.NodePortPrefixes {
			if model.FamilyOf(r.Addr()) == f && !(n.settings.NodePortPrimary && r.Addr().IsLoopback()) {
				some, all = true, all || r.Bits() == 0
			}
		}
		switch {
		case some && !all:
			status.HealthAddrs = append(status.HealthAddrs, ofFamily(n.claims.Plan().Global.NodePortAddrs, f)...)
		case f == model.IPv4:
			status.HealthAddrs = append(status.HealthAddrs, netip.IPv4Unspecified())
		default:
			status.HealthAddrs = append(status.HealthAddrs, netip.IPv6Unspecified())
		}
	}
	status.HealthAddrs = sortedAddrs(status.HealthAddrs)
	status.LocalhostAddrs = n.LocalhostAddrs()
	return status
}
