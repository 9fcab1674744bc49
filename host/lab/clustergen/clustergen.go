// Package clustergen makes random clusters and flows for tests: Services of all kinds, EndpointSlices with all kinds of
// conditions and hints, Nodes, settings, and connections from everywhere to everywhere. The same seed and options give
// the same on every machine.
package clustergen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
)

// Options say what there is. The zero value of each means something made up.
type Options struct {
	// Index tells clusters apart that are programmed one after the other: of different ones (0 to 99), no two have a
	// Service address or a NodePort in common.
	Index int
	// Targets are the endpoints' addresses and ports, so that real servers can stand behind them.
	Targets []netip.AddrPort
	// NodeAddrs are this node's addresses. The first of each family is its Node's, the others are on its links.
	NodeAddrs []netip.Addr
	// Clients are the addresses that connections come from: Pods, this node, and others.
	Clients []netip.Addr
	// Interfaces are where the packets of Clients come in at the node.
	Interfaces map[netip.Addr]string
	// Protocols of Service ports; all three.
	Protocols []model.Protocol
}

// The made-up surroundings. Pods are 10.244.0.0/16 and fd00:10:244::/64.
var (
	podSources = prefixes("10.244.0.0/16", "fd00:10:244::/64")
	// node is this node's name.
	node = "n0"
)

// Cluster is a random cluster, and what a node that is in it is told.
type Cluster struct {
	Changes  []model.Change
	Settings planner.Settings

	rng *rand.Rand
	o   Options
	to  []plan.Flow // where a frontend listens, or might

	madeUp bool // the clients
	addrs  []netip.Addr
}

// New makes a cluster.
func New(seed uint64, o Options) *Cluster {
	if o.Targets == nil {
		for _, a := range addrs("10.244.0.1", "10.244.0.2", "10.244.1.1", "10.244.1.2", "10.244.2.1", "192.168.0.1", "192.168.0.2",
			"fd00:10:244::1", "fd00:10:244::2", "fd00:10:244::1:1", "fd00:10:244::2:1", "fd00:192::1") {
			o.Targets = append(o.Targets, netip.AddrPortFrom(a, 8080), netip.AddrPortFrom(a, 9090))
		}
	}
	if o.NodeAddrs == nil {
		o.NodeAddrs = addrs("192.168.0.1", "192.168.7.7", "10.244.0.254", "fd00:192::1", "fd00:192::7", "169.254.20.10")
	}
	madeUp := o.Clients == nil
	if madeUp {
		o.Clients = addrs("10.244.0.1", "10.244.1.1", "10.244.9.9", "192.168.0.1", "192.168.0.2", "192.168.7.7", "10.244.0.254",
			"127.0.0.1", "198.51.100.9", "198.51.101.9", "fd00:10:244::1", "fd00:10:244::9:9", "fd00:192::1", "fd00:192::2", "::1", "2001:db8:ffff::9")
	}
	if madeUp {
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
	c := &Cluster{rng: rand.New(rand.NewPCG(seed, 0xc105)), o: o, madeUp: madeUp}
	c.settings()
	c.nodes()
	for n := range 2 + c.rng.IntN(6) {
		c.service(n)
	}
	c.Changes = append(c.Changes, model.Change{Kind: model.Synced})
	return c
}

// Snapshot is the cluster's state.
func (c *Cluster) Snapshot() *model.Snapshot {
	s := model.NewSnapshot()
	for _, ch := range c.Changes {
		s.Apply(ch)
	}
	return s
}

func (c *Cluster) settings() {
	s := planner.Settings{Node: node, MasqueradeMark: 0x4000, MasqueradeAll: c.one(6)}
	switch c.rng.IntN(7) {
	case 0: // nothing tells Pods from others
	case 1:
		s.PodInterfaces = c.podInterfaces()
	case 2:
		s.PodSources = []netip.Prefix{pick(c, podSources)}
	default:
		s.PodSources = podSources
	}
	for _, a := range c.o.NodeAddrs {
		if c.one(4) {
			s.NodePortPrefixes = append(s.NodePortPrefixes, netip.PrefixFrom(a, a.BitLen()-c.rng.IntN(9)).Masked())
		}
	}
	if c.one(6) {
		s.NodePortPrefixes = append(s.NodePortPrefixes, pick(c, prefixes("0.0.0.0/0", "::/0", "127.0.0.0/8", "::1/128")))
	}
	s.LocalAddrs = append(addrs("127.0.0.1", "::1"), c.o.NodeAddrs...)
	c.Settings = s
}

// podInterfaces are the links of the clients that are Pods by their ranges, each by name or by the start of it.
func (c *Cluster) podInterfaces() (out []string) {
	for _, a := range c.o.Clients {
		name := c.o.Interfaces[a]
		if name == "" || !slices.ContainsFunc(podSources, func(p netip.Prefix) bool { return p.Contains(a) }) {
			continue
		}
		if c.one(3) {
			name += "*"
		}
		out = append(out, name)
	}
	return out
}

func (c *Cluster) nodes() {
	zones := []string{"a", "a", "b", "b", ""}
	own := &model.Node{Name: node, Zone: pick(c, zones), Addresses: c.primaries()}
	for _, n := range []*model.Node{own, {Name: "n1", Zone: pick(c, zones), Addresses: addrs("192.168.0.2")}, {Name: "n2"}} {
		c.Changes = append(c.Changes, model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
	}
	if !c.one(4) {
		cidr := &model.ServiceCIDR{Name: "kubernetes", CIDRs: prefixes("10.96.0.0/16", "fd00:10:96::/112")[:1+c.rng.IntN(2)]}
		c.Changes = append(c.Changes, model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: cidr.Name}, CIDR: cidr})
	}
}

// primaries are the first of the node's addresses of each family.
func (c *Cluster) primaries() (out []netip.Addr) {
	for _, a := range c.o.NodeAddrs {
		if !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// vip is an address of a block of addresses that is this cluster's alone.
func (c *Cluster) vip(f model.Family, block byte, n int) netip.Addr {
	if f == model.IPv4 {
		switch block {
		case 0:
			return netip.AddrFrom4([4]byte{10, 96, byte(c.o.Index), byte(n)})
		default:
			return netip.AddrFrom4([4]byte{198, 17 + block, byte(c.o.Index), byte(n)})
		}
	}
	if block == 0 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 14: byte(c.o.Index), 15: byte(n)})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, block, 14: byte(c.o.Index), 15: byte(n)})
}

// service makes Service n with its slices.
func (c *Cluster) service(n int) {
	s := &model.Service{
		Name:          model.Name{Namespace: "shop", Name: fmt.Sprintf("s%d", n)},
		InternalLocal: c.one(4), ExternalLocal: c.one(2), Created: int64(c.rng.IntN(3)),
	}
	if c.one(5) {
		s.Affinity = 3 * time.Hour
	}
	families := [][]model.Family{{model.IPv4}, {model.IPv6}, {model.IPv4, model.IPv6}, {model.IPv6, model.IPv4}}[c.rng.IntN(4)]
	if !slices.ContainsFunc(families, c.reaches) {
		families = []model.Family{model.FamilyOf(c.o.Clients[0])}
	}
	for _, f := range families {
		s.ClusterIPs = append(s.ClusterIPs, c.vip(f, 0, 1+n))
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} { // of a family without ClusterIP: not served
		if c.one(3) {
			s.ExternalIPs = append(s.ExternalIPs, c.vip(f, 1, 1+n))
			if own := c.ofFamily(c.o.NodeAddrs, f); n == 0 && len(own) > 0 && c.one(4) { // no other Service wants it too
				s.ExternalIPs = append(s.ExternalIPs, pick(c, own))
			}
		}
		for i := range c.rng.IntN(3) {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, c.vip(f, 2, 10*i+1+n))
		}
	}
	if c.one(2) {
		s.SourceRanges = c.ranges()
	}
	names, used := []string{"", "http", "metrics"}, map[string]bool{}
	for i := range 1 + c.rng.IntN(3) {
		p := model.ServicePort{Name: names[i], Protocol: pick(c, c.o.Protocols), Port: pick(c, []uint16{53, 80, 443})}
		if key := fmt.Sprint(p.Port, p.Protocol); used[key] {
			continue
		} else {
			used[key] = true
		}
		if c.one(2) {
			p.NodePort = uint16(30000 + 27*c.o.Index + 3*n + i)
		}
		s.Ports = append(s.Ports, p)
	}
	c.Changes = append(c.Changes, model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s})
	c.remember(s)
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		c.slices(s, f)
	}
}

// ranges let some of the clients in.
func (c *Cluster) ranges() (out []netip.Prefix) {
	for range 1 + c.rng.IntN(3) {
		a := pick(c, slices.Concat(c.o.Clients, c.o.NodeAddrs))
		bits := a.BitLen() - pick(c, []int{0, 4, 8, 16})
		if c.one(12) {
			bits = 0
		}
		out = append(out, netip.PrefixFrom(a, bits).Masked())
	}
	return out
}

// slices makes up to three slices of a Service and family.
func (c *Cluster) slices(s *model.Service, f model.Family) {
	var targets []netip.AddrPort
	for _, t := range c.o.Targets {
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
		number := pick(c, targets).Port()
		for _, p := range s.Ports {
			sp := model.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: number}
			switch c.rng.IntN(12) {
			case 0:
				sp.Name = "other"
			case 1:
				sp.Protocol = pick(c, []model.Protocol{model.TCP, model.UDP, model.SCTP})
			}
			if !slices.ContainsFunc(slice.Ports, func(q model.SlicePort) bool { return q.Name == sp.Name && q.Protocol == sp.Protocol }) {
				slice.Ports = append(slice.Ports, sp)
			}
		}
		for range 1 + c.rng.IntN(4) {
			slice.Endpoints = append(slice.Endpoints, c.endpoint(pick(c, targets).Addr(), style, hints))
		}
		c.Changes = append(c.Changes, model.Change{Kind: model.SliceKind, Name: slice.Name, Slice: slice})
	}
}

// endpoint makes one at an address. An address is always on the same node, and has the same hints in a Service, as
// controllers see to; its conditions may be others in another slice.
func (c *Cluster) endpoint(a netip.Addr, style, hints int) model.SliceEndpoint {
	b := a.As16()
	e := model.SliceEndpoint{Addr: a, Node: []string{node, "n1", "n2"}[(int(b[13])+int(b[15]))%3], Zone: "b"}
	if slices.Contains(c.o.NodeAddrs, a) {
		e.Node = node
	}
	if e.Node == node {
		e.Zone = "a"
	}
	terminating := func() { e.Terminating, e.Serving, e.Ready = true, c.one(2), false }
	ready := func() { e.Ready, e.Serving = true, true }
	switch style {
	case 0: // a rolling update
		if ready(); c.one(3) {
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

func (c *Cluster) one(in int) bool { return c.rng.IntN(in) == 0 }

func (c *Cluster) ofFamily(list []netip.Addr, f model.Family) (out []netip.Addr) {
	for _, a := range list {
		if model.FamilyOf(a) == f {
			out = append(out, a)
		}
	}
	return out
}

func pick[T any](c *Cluster, from []T) T { return from[c.rng.IntN(len(from))] }

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
