package testgen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// ClusterOptions are the options of a Cluster. A zero field means a generated default.
type ClusterOptions struct {
	// Index, 0 to 99, separates clusters that share a kernel: clusters with different indexes have no Service address or NodePort
	// in common.
	Index int
	// Targets are the endpoints' addresses and ports, for tests with real servers.
	Targets []netip.AddrPort
	// NodeAddrs are this node's addresses. The first of each family is in its Node object, the others are on its links only.
	NodeAddrs []netip.Addr
	// Clients are the source addresses of flows: Pods, this node, and others.
	Clients []netip.Addr
	// Interfaces are the input interfaces of packets from Clients.
	Interfaces map[netip.Addr]string
	// Protocols of Service ports; default all three.
	Protocols []model.Protocol
}

// The generated network.
var (
	podSources = prefixes("10.244.0.0/16", "fd00:10:244::/64")
	nodeName   = "n0" // this node
)

// Cluster is a random cluster with the settings of a node in it.
type Cluster struct {
	Changes  []model.Change
	Settings planner.Settings

	rng          *rand.Rand
	options      ClusterOptions
	destinations []plan.Flow // where a frontend may listen

	defaultClients bool         // options.Clients was not set
	addrs          []netip.Addr // of Services and the node
	allocated      []netip.Addr // ClusterIPs and load balancer addresses
}

// NewCluster returns a random cluster. The same seed and options return the same cluster on every machine.
func NewCluster(seed uint64, o ClusterOptions) *Cluster {
	if o.Targets == nil {
		for _, a := range addrs("10.244.0.1", "10.244.0.2", "10.244.1.1", "10.244.1.2", "10.244.2.1", "192.168.0.1", "192.168.0.2",
			"fd00:10:244::1", "fd00:10:244::2", "fd00:10:244::1:1", "fd00:10:244::2:1", "fd00:192::1") {
			o.Targets = append(o.Targets, netip.AddrPortFrom(a, 8080), netip.AddrPortFrom(a, 9090))
		}
	}
	if o.NodeAddrs == nil {
		o.NodeAddrs = addrs("192.168.0.1", "192.168.7.7", "10.244.0.254", "fd00:192::1", "fd00:192::7", "169.254.20.10")
	}
	defaultClients := o.Clients == nil
	if defaultClients {
		o.Clients = addrs("10.244.0.1", "10.244.1.1", "10.244.9.9", "192.168.0.1", "192.168.0.2", "192.168.7.7", "10.244.0.254",
			"127.0.0.1", "198.51.100.9", "198.51.101.9", "fd00:10:244::1", "fd00:10:244::9:9", "fd00:192::1", "fd00:192::2", "::1", "2001:db8:ffff::9")
		o.Interfaces = map[netip.Addr]string{}
		for i, a := range o.Clients {
			switch {
			case slices.Contains(o.NodeAddrs, a) || a.IsLoopback():
			case slices.ContainsFunc(podSources, func(p netip.Prefix) bool { return p.Contains(a) }):
				o.Interfaces[a] = fmt.Sprintf("veth%d", i)
			default:
				o.Interfaces[a] = "eth0"
			}
		}
	}
	if o.Protocols == nil {
		o.Protocols = []model.Protocol{model.TCP, model.UDP, model.SCTP}
	}
	c := &Cluster{rng: rand.New(rand.NewPCG(seed, 0xc105)), options: o, defaultClients: defaultClients}
	c.settings()
	c.nodes()
	for n := range 2 + c.rng.IntN(6) {
		c.service(n)
	}
	c.Changes = append(c.Changes, model.Change{Kind: model.Synced})
	return c
}

// Snapshot returns the cluster's state.
func (c *Cluster) Snapshot() *model.Snapshot {
	s := model.NewSnapshot()
	for _, ch := range c.Changes {
		s.Apply(ch)
	}
	return s
}

func (c *Cluster) settings() {
	s := planner.Settings{Node: nodeName, MasqueradeMark: 0x4000, Planning: planner.Planning{MasqueradeAll: c.oneIn(6)}}
	switch c.rng.IntN(7) {
	case 0: // no detection of Pods
	case 1:
		s.PodInterfaces = c.podInterfaces()
	case 2:
		s.PodSources = []netip.Prefix{pick(c.rng, podSources)}
	default:
		s.PodSources = podSources
	}
	for _, a := range c.options.NodeAddrs {
		if c.oneIn(4) {
			s.NodePortPrefixes = append(s.NodePortPrefixes, netip.PrefixFrom(a, a.BitLen()-c.rng.IntN(9)).Masked())
		}
	}
	if c.oneIn(6) {
		s.NodePortPrefixes = append(s.NodePortPrefixes, pick(c.rng, prefixes("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")))
	}
	s.NodePortPrimary = s.NodePortPrefixes != nil && c.oneIn(4)
	s.LocalAddrs = append(addrs("127.0.0.1", "::1"), c.options.NodeAddrs...)
	if s.MasqueradeAll { // where it makes a difference to most connections
		s.NoMasqueradeCIDRs = prefixes("10.244.0.0/30", "fd00:10:244::/126")
	}
	c.Settings = s
}

// podInterfaces returns the interfaces of the clients in podSources, as names or prefixes of names.
func (c *Cluster) podInterfaces() (out []string) {
	for _, a := range c.options.Clients {
		name := c.options.Interfaces[a]
		if name == "" || !slices.ContainsFunc(podSources, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		if c.oneIn(3) {
			name += "*"
		}
		out = append(out, name)
	}
	return out
}

func (c *Cluster) nodes() {
	zones := []string{"a", "a", "b", "b", ""}
	own := &model.Node{Name: nodeName, Zone: pick(c.rng, zones), Addresses: c.primaries()}
	for _, n := range []*model.Node{own, {Name: "n1", Zone: pick(c.rng, zones), Addresses: addrs("192.168.0.2")}, {Name: "n2"}} {
		c.Changes = append(c.Changes, model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
	}
	if !c.oneIn(4) {
		cidr := &model.ServiceCIDR{Name: "kubernetes", CIDRs: prefixes("10.96.0.0/16", "fd00:10:96::/112")[:1+c.rng.IntN(2)]}
		c.Changes = append(c.Changes, model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: cidr.Name}, CIDR: cidr})
	}
}

// primaries returns the node's first address of each family.
func (c *Cluster) primaries() (out []netip.Addr) {
	for _, a := range c.options.NodeAddrs {
		if !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// serviceIP returns an address of a block that no cluster with another index uses.
func (c *Cluster) serviceIP(f model.Family, block byte, n int) netip.Addr {
	if f == model.IPv4 {
		switch block {
		case 0:
			return netip.AddrFrom4([4]byte{10, 96, byte(c.options.Index), byte(n)})
		default:
			return netip.AddrFrom4([4]byte{198, 17 + block, byte(c.options.Index), byte(n)})
		}
	}
	if block == 0 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 14: byte(c.options.Index), 15: byte(n)})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, block, 14: byte(c.options.Index), 15: byte(n)})
}

// service adds Service n with its slices.
func (c *Cluster) service(n int) {
	s := &model.Service{
		Name:          model.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", n)},
		InternalLocal: c.oneIn(4), ExternalLocal: c.oneIn(2), Created: int64(c.rng.IntN(3)),
	}
	if c.oneIn(5) {
		s.Affinity = 3 * time.Hour
	}
	families := [][]model.Family{{model.IPv4}, {model.IPv6}, {model.IPv4, model.IPv6}, {model.IPv6, model.IPv4}}[c.rng.IntN(4)]
	if !slices.ContainsFunc(families, c.reaches) {
		families = []model.Family{model.FamilyOf(c.options.Clients[0])}
	}
	for _, f := range families {
		s.ClusterIPs = append(s.ClusterIPs, c.serviceIP(f, 0, 1+n))
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} { // without a ClusterIP of the family they are not served
		if c.oneIn(3) {
			s.ExternalIPs = append(s.ExternalIPs, c.serviceIP(f, 1, 1+n))
			if own := c.ofFamily(c.options.NodeAddrs, f); n == 0 && len(own) > 0 && c.oneIn(4) { // only the first Service, so that there is no conflict
				s.ExternalIPs = append(s.ExternalIPs, pick(c.rng, own))
			}
		}
		if foreign := c.ofFamily(c.allocated, f); len(foreign) > 0 && c.oneIn(4) {
			s.ExternalIPs = append(s.ExternalIPs, pick(c.rng, foreign))
		}
		for i := range c.rng.IntN(3) {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, c.serviceIP(f, 2, 10*i+1+n))
		}
	}
	if c.oneIn(2) {
		s.SourceRanges = c.sourceRanges()
	}
	names, used := []string{"", "http", "metrics"}, map[string]bool{}
	for i := range 1 + c.rng.IntN(3) {
		p := model.ServicePort{Name: names[i], Protocol: pick(c.rng, c.options.Protocols), Port: pick(c.rng, []uint16{53, 80, 443})}
		if key := fmt.Sprint(p.Port, p.Protocol); used[key] {
			continue
		} else {
			used[key] = true
		}
		if c.oneIn(2) {
			p.NodePort = uint16(30000 + 27*c.options.Index + 3*n + i)
		}
		s.Ports = append(s.Ports, p)
	}
	c.Changes = append(c.Changes, model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s})
	c.allocated = slices.Concat(c.allocated, s.ClusterIPs, s.LoadBalancerIPs)
	c.addDestinations(s)
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		c.slices(s, f)
	}
}

// sourceRanges returns ranges that contain some of the clients.
func (c *Cluster) sourceRanges() (out []netip.Prefix) {
	for range 1 + c.rng.IntN(3) {
		a := pick(c.rng, slices.Concat(c.options.Clients, c.options.NodeAddrs))
		bits := a.BitLen() - pick(c.rng, []int{0, 4, 8, 16})
		if c.oneIn(12) {
			bits = 0
		}
		out = append(out, netip.PrefixFrom(a, bits).Masked())
	}
	return plan.NormalizePrefixes(out)
}

// slices adds up to three slices of a Service and family.
func (c *Cluster) slices(s *model.Service, f model.Family) {
	var targets []netip.AddrPort
	for _, t := range c.options.Targets {
		if model.FamilyOf(t.Addr()) == f {
			targets = append(targets, t)
		}
	}
	if len(targets) == 0 {
		return
	}
	style, hints := c.rng.IntN(5), c.rng.IntN(6)
	for i := range c.rng.IntN(4) {
		slice := &model.EndpointSlice{
			Name: model.Name{Namespace: "shop", Name: fmt.Sprintf("%s-v%d-%d", s.Name.Name, f, i)}, Service: s.Name, Family: f,
		}
		number := pick(c.rng, targets).Port()
		for _, p := range s.Ports {
			sp := model.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: number}
			switch c.rng.IntN(12) {
			case 0:
				sp.Name = "other"
			case 1:
				sp.Protocol = pick(c.rng, []model.Protocol{model.TCP, model.UDP, model.SCTP})
			}
			if !slices.ContainsFunc(slice.Ports, func(q model.SlicePort) bool { return q.Name == sp.Name && q.Protocol == sp.Protocol }) {
				slice.Ports = append(slice.Ports, sp)
			}
		}
		for range 1 + c.rng.IntN(4) {
			slice.Endpoints = append(slice.Endpoints, c.endpoint(pick(c.rng, targets).Addr(), style, hints))
		}
		if f == model.IPv4 && c.oneIn(5) { // addresses that may not be endpoints
			slice.Endpoints = append(slice.Endpoints, c.endpoint(netip.MustParseAddr("240.0.0.9"), style, hints))
		}
		if cidr := c.cidr(f); cidr.IsValid() && c.oneIn(5) {
			slice.Endpoints = append(slice.Endpoints, c.endpoint(cidr.Addr().Next(), style, hints))
		}
		c.Changes = append(c.Changes, model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: slice})
	}
}

// cidr returns the ServiceCIDR of a family, if there is one.
func (c *Cluster) cidr(f model.Family) netip.Prefix {
	for _, ch := range c.Changes {
		if ch.CIDR == nil {
			continue
		}
		for _, p := range ch.CIDR.CIDRs {
			if model.FamilyOf(p.Addr()) == f {
				return p
			}
		}
	}
	return netip.Prefix{}
}

// endpoint returns an endpoint. As in a real cluster, an address is always on the same node and has the same hints throughout a
// Service; its conditions may differ between slices.
func (c *Cluster) endpoint(a netip.Addr, style, hints int) model.SliceEndpoint {
	b := a.As16()
	e := model.SliceEndpoint{Addr: a, Node: []string{nodeName, "n1", "n2"}[(int(b[13])+int(b[15]))%3], Zone: "b"}
	if slices.Contains(c.options.NodeAddrs, a) {
		e.Node = nodeName
	}
	if e.Node == nodeName {
		e.Zone = "a"
	}
	terminating := func() { e.Terminating, e.Serving, e.Ready = true, c.oneIn(2), false }
	ready := func() { e.Ready, e.Serving = true, true }
	switch style {
	case 0: // a rolling update
		if ready(); c.oneIn(3) {
			terminating()
		}
	case 1:
		terminating()
	case 2:
		switch c.rng.IntN(4) {
		case 0:
			e.Ready, e.Serving, e.Terminating = true, true, true // publishNotReadyAddresses
		case 1:
			terminating()
		case 2:
			ready()
		}
	default:
		ready()
	}
	switch hints {
	case 0:
		e.Hints = &model.Hints{Zones: []string{e.Zone}}
	case 1:
		if b[15] != 2 {
			e.Hints = &model.Hints{Zones: []string{"a", "b"}[int(b[15])%2:]}
		}
	case 2:
		e.Hints = &model.Hints{Nodes: []string{e.Node}}
	case 3:
		e.Hints = &model.Hints{Nodes: []string{"n1", e.Node}, Zones: []string{e.Zone}}
	}
	return e
}

func (c *Cluster) oneIn(in int) bool { return c.rng.IntN(in) == 0 }

func (c *Cluster) ofFamily(list []netip.Addr, f model.Family) (out []netip.Addr) {
	for _, a := range list {
		if model.FamilyOf(a) == f {
			out = append(out, a)
		}
	}
	return out
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
