package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// foreign knows the addresses of other hosts and of Pods. Where the data plane adds the addresses of Services to this node (mode
// ipvs), it would take the whole host away from it, whatever the ports of the Service. So they are in no plan there.
type foreign struct {
	nodes  map[netip.Addr]int   // addresses of Nodes: how many have it
	ranges map[netip.Prefix]int // podCIDRs of Nodes, likewise
	bits   map[int]int          // lengths of ranges, likewise
	hosts  map[netip.Addr]bool  // Settings.Hosts
	pods   []netip.Prefix       // ranges of Pods that do not come from Nodes
	dirty  bool                 // since the last refresh
	asked  bool                 // claims asks whose an address is
}

func newForeign() foreign {
	return foreign{nodes: map[netip.Addr]int{}, ranges: map[netip.Prefix]int{}, bits: map[int]int{}}
}

// change replaces a Node; nil is none.
func (f *foreign) change(old, n *model.Node) {
	if old == nil {
		old = &model.Node{}
	}
	if n == nil {
		n = &model.Node{}
	}
	if slices.Equal(old.Addresses, n.Addresses) && slices.Equal(old.PodCIDRs, n.PodCIDRs) {
		return
	}
	f.count(old, -1)
	f.count(n, 1)
	f.dirty = true
}

func (f *foreign) count(n *model.Node, by int) {
	for _, a := range n.Addresses {
		add(f.nodes, a, by)
	}
	for _, p := range n.PodCIDRs {
		add(f.ranges, p.Masked(), by)
		add(f.bits, p.Bits(), by)
	}
}

func add[K comparable](m map[K]int, k K, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

// set replaces what does not come from Nodes.
func (f *foreign) set(hosts []netip.Addr, pods []netip.Prefix) {
	pods = plan.NormalizePrefixes(pods)
	if len(hosts) == len(f.hosts) && !slices.ContainsFunc(hosts, func(a netip.Addr) bool { return !f.hosts[a] }) && slices.Equal(pods, f.pods) {
		return
	}
	f.hosts, f.pods, f.dirty = map[netip.Addr]bool{}, pods, true
	for _, a := range hosts {
		f.hosts[a] = true
	}
}

// owner returns whose an address is, "" if it is nobody's.
func (f *foreign) owner(a netip.Addr) string {
	switch {
	case f.nodes[a] > 0:
		return "a Node"
	case f.hosts[a]:
		return "a gateway or an API server"
	}
	for _, p := range f.pods {
		if p.Contains(a) {
			return "the Pods, in " + p.String()
		}
	}
	for bits := range f.bits {
		if bits > a.BitLen() {
			continue
		}
		if p := netip.PrefixFrom(a, bits).Masked(); f.ranges[p] > 0 {
			return "the Pods, in " + p.String()
		}
	}
	return ""
}
