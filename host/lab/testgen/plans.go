// Package testgen generates random plans, clusters and flows for tests. The same seed and options return the same values on
// every machine.
package testgen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// PlanOptions are the options of Plans. A zero field means the default.
type PlanOptions struct {
	Ports     int              // maximum of Service ports in a plan; default 8
	Endpoints int              // maximum of endpoints in a pool; default 12
	MaxWeight uint16           // of an endpoint; default 65535
	Families  []model.Family   // default both
	Protocols []model.Protocol // default TCP, UDP and SCTP, mostly TCP
	Balances  []plan.Balance   // default all four, mostly Random
	// Targets are the endpoints' addresses and ports, for tests with real servers; default from the Pod ranges.
	Targets []netip.AddrPort
	// Global is the global part of every plan; by default it is random and changes sometimes.
	Global *plan.Global
}

// Plans generates plans that are valid, realistic and small enough to be read when a test fails. It is not safe for concurrent
// use.
type Plans struct {
	rng     *rand.Rand
	counts  *rand.Rand // of Outcomes
	retries *rand.Rand // of RetryRefused
	hints   *rand.Rand // of LongLived
	options PlanOptions
}

// NewPlans returns a generator.
func NewPlans(seed uint64, o PlanOptions) *Plans {
	if o.Ports == 0 {
		o.Ports = 8
	}
	if o.Endpoints == 0 {
		o.Endpoints = 12
	}
	if o.MaxWeight == 0 {
		o.MaxWeight = 65535
	}
	if o.Families == nil {
		o.Families = []model.Family{model.IPv4, model.IPv6}
	}
	if o.Protocols == nil {
		o.Protocols = []model.Protocol{model.TCP, model.TCP, model.TCP, model.UDP, model.SCTP}
	}
	if o.Balances == nil {
		o.Balances = []plan.Balance{plan.Random, plan.Random, plan.Random, plan.Random, plan.RoundRobin, plan.SourceHash, plan.LeastConnections}
	}
	return &Plans{rng: rand.New(rand.NewPCG(seed, 0x5105)), counts: rand.New(rand.NewPCG(seed, 0xc017)), retries: rand.New(rand.NewPCG(seed, 0x2e7)),
		hints: rand.New(rand.NewPCG(seed, 0x4963)), options: o}
}

// Plan returns a random plan.
func (g *Plans) Plan() *plan.Plan {
	p := &plan.Plan{Global: g.global(), Frontends: map[plan.Key]*plan.Frontend{}}
	for range 1 + g.rng.IntN(g.options.Ports) {
		g.addPort(p)
	}
	return p
}

// Next returns a plan that may follow p: mostly with a few changes, sometimes with everything or nothing changed. It does not
// modify p, and shares unchanged frontends with it.
func (g *Plans) Next(p *plan.Plan) *plan.Plan {
	switch g.rng.IntN(20) {
	case 0:
		return g.Plan()
	case 1:
		return &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	}
	next := &plan.Plan{Global: p.Global, Frontends: make(map[plan.Key]*plan.Frontend, len(p.Frontends))}
	for k, f := range p.Frontends {
		next.Frontends[k] = f
	}
	if g.oneIn(8) {
		next.Global = g.global()
	}
	for range 1 + g.rng.IntN(3) {
		owners := owners(next)
		if len(owners) == 0 || len(owners) < g.options.Ports && g.oneIn(4) {
			g.addPort(next)
			continue
		}
		g.changePort(next, owners[g.rng.IntN(len(owners))])
	}
	return next
}

// changePort makes one change to the frontends of a Service port.
func (g *Plans) changePort(p *plan.Plan, owner model.PortName) {
	keys := keysOf(p, owner)
	switch g.rng.IntN(10) {
	case 0: // delete the port
		for _, k := range keys {
			delete(p.Frontends, k)
		}
	case 1: // delete one of its frontends
		delete(p.Frontends, keys[g.rng.IntN(len(keys))])
	case 2: // change its settings
		affinity, outcomes, retry, longLived := g.affinity(), g.countsOutcomes(), g.retries.IntN(4) == 0, g.longLived(owner)
		for _, k := range keys {
			f := *p.Frontends[k]
			f.Outcomes, f.RetryRefused, f.LongLived = outcomes, retry, longLived
			f.Affinity, f.Balance, f.Masquerade = affinity, g.balance(), g.masquerade(f.Kind)
			if f.Kind == plan.LoadBalancer {
				f.SourceRanges = g.sourceRanges(k.Family())
			}
			p.Frontends[k] = &f
		}
	case 3: // change its traffic policy
		for _, k := range keys {
			f := *p.Frontends[k]
			if f.Kind != plan.ClusterIP {
				if f.Outside == nil {
					f.Outside = g.localPart(&f.Pool)
				} else {
					f.Outside = nil
				}
				p.Frontends[k] = &f
			}
		}
	default: // change its endpoints or their weights, in all frontends that share them
		was, next := []plan.Pool{}, []plan.Pool{}
		swap := func(q plan.Pool, family model.Family) plan.Pool {
			if i := slices.IndexFunc(was, func(o plan.Pool) bool { return o.Equal(&q) && len(o.Endpoints) > 0 }); i >= 0 {
				return next[i]
			}
			n := g.changePool(q, family)
			was, next = append(was, q), append(next, n)
			return n
		}
		for _, k := range keys {
			f := *p.Frontends[k]
			f.Pool = swap(f.Pool, k.Family())
			if f.Outside != nil {
				o := swap(*f.Outside, k.Family())
				f.Outside = &o
			}
			p.Frontends[k] = &f
		}
	}
}

func (g *Plans) longLived(owner model.PortName) bool {
	return g.hints.IntN(4) == 0 && owner.Protocol != model.SCTP
}

// addPort adds a Service port to p: a ClusterIP in one or both families, and often frontends of other kinds.
func (g *Plans) addPort(p *plan.Plan) {
	n := g.rng.IntN(200)
	names := []string{"", "http", "grpc", "dns-tcp"}
	owner := model.PortName{
		Service:  model.Name{Namespace: pick(g.rng, []string{"shop", "kube-system", "team-a"}), Name: fmt.Sprintf("svc-%d", n/2)},
		Port:     names[g.rng.IntN(len(names))],
		Protocol: pick(g.rng, g.options.Protocols),
	}
	if len(keysOf(p, owner)) > 0 {
		return
	}
	// Ports of a Service share its address, and protocols may share a port number.
	port := uint16(pick(g.rng, []int{53, 80, 443, 8080, 1 + g.rng.IntN(65535)}))
	nodePort := uint16(30000 + g.rng.IntN(2768))
	affinity, outcomes, retry, longLived := g.affinity(), g.countsOutcomes(), g.retries.IntN(4) == 0, g.longLived(owner)
	local := g.oneIn(3)
	kinds := []plan.Kind{plan.ClusterIP}
	for _, k := range []plan.Kind{plan.ExternalIP, plan.LoadBalancer, plan.NodePort} {
		if g.oneIn(3) {
			kinds = append(kinds, k)
		}
	}
	families := g.options.Families
	if g.oneIn(2) {
		families = []model.Family{pick(g.rng, families)}
	}
	for _, family := range families {
		pool := g.pool(family)
		outside := g.localPart(&pool)
		for _, kind := range kinds {
			f := &plan.Frontend{
				Key:  plan.Key{Addr: vip(family, kind, owner.Service.Namespace, n/2), Port: port, Protocol: owner.Protocol},
				Kind: kind, Owner: owner, Pool: pool, Affinity: affinity,
				Masquerade: g.masquerade(kind), Balance: g.balance(), Outcomes: outcomes, RetryRefused: retry, LongLived: longLived,
			}
			if kind == plan.NodePort {
				f.Key.Port = nodePort
			}
			if kind == plan.LoadBalancer {
				f.SourceRanges = g.sourceRanges(family)
			}
			if kind != plan.ClusterIP && local {
				f.Outside, f.Masquerade = outside, plan.MasqueradeFromNode
			}
			if p.Frontends[f.Key] == nil {
				p.Frontends[f.Key] = f
			}
		}
	}
}

func (g *Plans) countsOutcomes() bool { return g.counts.IntN(4) == 0 }

func (g *Plans) affinity() time.Duration {
	if g.oneIn(3) {
		return time.Duration(pick(g.rng, []int{1, 30, 10800, 86400})) * time.Second
	}
	return 0
}

func (g *Plans) balance() plan.Balance { return pick(g.rng, g.options.Balances) }

func (g *Plans) masquerade(kind plan.Kind) plan.Masquerade {
	if kind == plan.ClusterIP {
		return pick(g.rng, []plan.Masquerade{plan.MasqueradeOutside, plan.MasqueradeOutside, plan.MasqueradeNever, plan.MasqueradeAlways})
	}
	return pick(g.rng, []plan.Masquerade{plan.MasqueradeAlways, plan.MasqueradeAlways, plan.MasqueradeFromNode, plan.MasqueradeNever})
}

func (g *Plans) sourceRanges(family model.Family) []netip.Prefix {
	if g.oneIn(2) {
		return nil
	}
	var list []netip.Prefix
	for range 1 + g.rng.IntN(4) {
		if family == model.IPv4 {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(1 + g.rng.IntN(223)), byte(g.rng.IntN(256)), byte(g.rng.IntN(256)), byte(g.rng.IntN(256))}), 1+g.rng.IntN(32)))
		} else {
			a := [16]byte{0x20, 0x01, 0x0d, 0xb8, byte(g.rng.IntN(256)), byte(g.rng.IntN(256)), 15: byte(g.rng.IntN(256))}
			list = append(list, netip.PrefixFrom(netip.AddrFrom16(a), pick(g.rng, []int{29, 32, 48, 61, 64, 127, 128})))
		}
	}
	if g.oneIn(3) { // while ranges change, one may contain others
		for i := range list {
			list[i] = list[i].Masked()
		}
		list = append(list, netip.PrefixFrom(list[0].Addr(), list[0].Addr().BitLen()), netip.PrefixFrom(list[0].Addr(), 0).Masked())
		slices.SortFunc(list, netip.Prefix.Compare)
		return slices.Compact(list)
	}
	return plan.NormalizePrefixes(list)
}

func (g *Plans) global() plan.Global {
	if g.options.Global != nil {
		return *g.options.Global
	}
	out := plan.Global{MasqueradeMark: 1 << pick(g.rng, []int{14, 14, 14, 0, 31})}
	v4 := slices.Contains(g.options.Families, model.IPv4)
	add := func(family model.Family, add func()) {
		if (family == model.IPv4) == v4 || len(g.options.Families) == 2 {
			add()
		}
	}
	add(model.IPv4, func() {
		out.NodePortAddrs = append(out.NodePortAddrs, netip.AddrFrom4([4]byte{192, 168, 0, byte(1 + g.rng.IntN(9))}))
		if g.oneIn(3) {
			out.NodePortAddrs = append(out.NodePortAddrs, netip.MustParseAddr("203.0.113.1"))
		}
		if !g.oneIn(4) {
			out.PodSources = append(out.PodSources, netip.MustParsePrefix("10.244.0.0/16"))
		}
		if g.oneIn(2) {
			out.ServiceCIDRs = append(out.ServiceCIDRs, netip.MustParsePrefix("10.96.0.0/12"))
		}
		if g.counts.IntN(4) == 0 {
			out.NoMasquerade = append(out.NoMasquerade, netip.MustParsePrefix("10.244.0.0/30"))
		}
		if g.counts.IntN(2) == 0 {
			out.LocalhostAddrs = append(out.LocalhostAddrs, netip.MustParseAddr("127.0.0.1"))
		}
	})
	add(model.IPv6, func() {
		out.NodePortAddrs = append(out.NodePortAddrs, netip.MustParseAddr("fd00:192::1"))
		if !g.oneIn(4) {
			out.PodSources = append(out.PodSources, netip.MustParsePrefix("fd00:10:244::/56"))
		}
		if g.oneIn(2) {
			out.ServiceCIDRs = append(out.ServiceCIDRs, netip.MustParsePrefix("fd00:10:96::/108"))
		}
		if g.counts.IntN(4) == 0 {
			out.NoMasquerade = append(out.NoMasquerade, netip.MustParsePrefix("fd00:10:244::/126"))
		}
		if g.counts.IntN(2) == 0 {
			out.LocalhostAddrs = append(out.LocalhostAddrs, netip.IPv6Loopback())
		}
	})
	if g.oneIn(4) {
		out.PodInterfaces = []string{"cali*", "cni0"}
	}
	return out
}

func (g *Plans) oneIn(in int) bool { return g.rng.IntN(in) == 0 }

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// vip returns a Service's address, the same for all its ports.
func vip(family model.Family, kind plan.Kind, namespace string, n int) netip.Addr {
	ns, host := byte(len(namespace)), byte(n+1)
	switch kind {
	case plan.NodePort:
		if family == model.IPv4 {
			return netip.IPv4Unspecified()
		}
		return netip.IPv6Unspecified()
	case plan.ClusterIP:
		if family == model.IPv4 {
			return netip.AddrFrom4([4]byte{10, 96, ns, host})
		}
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0, 0x96, 14: ns, 15: host})
	case plan.ExternalIP:
		if family == model.IPv4 {
			return netip.AddrFrom4([4]byte{198, 51, 100, host})
		}
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 14: ns, 15: host})
	}
	if family == model.IPv4 {
		return netip.AddrFrom4([4]byte{203, 0, 113, host})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 2, 14: ns, 15: host})
}

func owners(p *plan.Plan) []model.PortName {
	var out []model.PortName
	for _, f := range p.Frontends {
		out = append(out, f.Owner)
	}
	slices.SortFunc(out, model.PortName.Compare)
	return slices.Compact(out)
}

func keysOf(p *plan.Plan, owner model.PortName) []plan.Key {
	var out []plan.Key
	for k, f := range p.Frontends {
		if f.Owner == owner {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, plan.Key.Compare)
	return out
}
