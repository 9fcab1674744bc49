// Package plangen makes random plans for tests: valid, realistic and small enough to be read when a test fails. The
// same seed and options give the same plans on every machine.
package plangen

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Options bound what a Gen makes. The zero value of each means the default.
type Options struct {
	Ports     int              // Service ports in a plan, at most; 8
	Members   int              // members of a pool, at most; 12
	MaxWeight uint16           // of a member; 65535
	Families  []model.Family   // both
	Protocols []model.Protocol // TCP, UDP and SCTP, TCP the commonest
	Balances  []plan.Balance   // all four, Random the commonest
	// Targets are the addresses that members are drawn from, so that real servers can stand behind them; made up
	// from the Pod ranges when there are none.
	Targets []netip.AddrPort
	// Global is used as it is in every plan when it is set; otherwise it is random and changes now and then.
	Global *plan.Global
}

// Gen makes plans. It is not safe for concurrent use.
type Gen struct {
	rng *rand.Rand
	o   Options
}

// New makes a generator.
func New(seed uint64, o Options) *Gen {
	if o.Ports == 0 {
		o.Ports = 8
	}
	if o.Members == 0 {
		o.Members = 12
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
	return &Gen{rng: rand.New(rand.NewPCG(seed, 0x5105)), o: o}
}

// Plan makes a plan from nothing.
func (g *Gen) Plan() *plan.Plan {
	p := &plan.Plan{Global: g.global(), Frontends: map[plan.Key]*plan.Frontend{}}
	for range 1 + g.rng.IntN(g.o.Ports) {
		g.addPort(p)
	}
	return p
}

// Next makes a plan that may follow p: mostly a few changes, now and then all of it or none. It does not change p, and
// shares with it what stays.
func (g *Gen) Next(p *plan.Plan) *plan.Plan {
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
	if g.one(8) {
		next.Global = g.global()
	}
	for range 1 + g.rng.IntN(3) {
		owners := owners(next)
		if len(owners) == 0 || len(owners) < g.o.Ports && g.one(4) {
			g.addPort(next)
			continue
		}
		g.change(next, owners[g.rng.IntN(len(owners))])
	}
	return next
}

// change does one thing to the frontends of a Service port.
func (g *Gen) change(p *plan.Plan, owner model.PortName) {
	keys := keysOf(p, owner)
	switch g.rng.IntN(10) {
	case 0: // the port goes
		for _, k := range keys {
			delete(p.Frontends, k)
		}
	case 1: // one of its frontends goes
		delete(p.Frontends, keys[g.rng.IntN(len(keys))])
	case 2: // its settings change
		affinity := g.affinity()
		for _, k := range keys {
			f := *p.Frontends[k]
			f.Affinity, f.Balance, f.Masquerade = affinity, g.balance(), g.masquerade(f.Kind)
			if f.Kind == plan.LoadBalancer {
				f.SourceRanges = g.sourceRanges(k.Family())
			}
			p.Frontends[k] = &f
		}
	case 3: // its traffic policy changes
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
	default: // its endpoints or their weights change, alike in all frontends that share them
		was, is := []plan.Pool{}, []plan.Pool{}
		swap := func(q plan.Pool, family model.Family) plan.Pool {
			if i := slices.IndexFunc(was, func(o plan.Pool) bool { return o.Equal(&q) && len(o.Endpoints) > 0 }); i >= 0 {
				return is[i]
			}
			n := g.mutate(q, family)
			was, is = append(was, q), append(is, n)
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

// addPort puts a Service port into p: a ClusterIP in one or both families, and often more ways in.
func (g *Gen) addPort(p *plan.Plan) {
	n := g.rng.IntN(200)
	names := []string{"", "http", "grpc", "dns-tcp"}
	owner := model.PortName{
		Service:  model.Name{Namespace: pick(g, []string{"shop", "kube-system", "team-a"}), Name: fmt.Sprintf("svc-%d", n/2)},
		Port:     names[g.rng.IntN(len(names))],
		Protocol: pick(g, g.o.Protocols),
	}
	if len(keysOf(p, owner)) > 0 {
		return
	}
	// The VIP belongs to the Service, so that other ports of it share the address; numbers may meet across protocols.
	port := uint16(pick(g, []int{53, 80, 443, 8080, 1 + g.rng.IntN(65535)}))
	nodePort := uint16(30000 + g.rng.IntN(2768))
	affinity := g.affinity()
	local := g.one(3)
	kinds := []plan.Kind{plan.ClusterIP}
	for _, k := range []plan.Kind{plan.ExternalIP, plan.LoadBalancer, plan.NodePort} {
		if g.one(3) {
			kinds = append(kinds, k)
		}
	}
	families := g.o.Families
	if g.one(2) {
		families = []model.Family{pick(g, families)}
	}
	for _, family := range families {
		pool := g.pool(family)
		outside := g.localPart(&pool)
		for _, kind := range kinds {
			f := &plan.Frontend{
				Key:  plan.Key{Addr: vip(family, kind, owner.Service.Namespace, n/2), Port: port, Protocol: owner.Protocol},
				Kind: kind, Owner: owner, Pool: pool, Affinity: affinity,
				Masquerade: g.masquerade(kind), Balance: g.balance(),
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

func (g *Gen) affinity() time.Duration {
	if g.one(3) {
		return time.Duration(pick(g, []int{1, 30, 10800, 86400})) * time.Second
	}
	return 0
}

func (g *Gen) balance() plan.Balance { return pick(g, g.o.Balances) }

func (g *Gen) masquerade(kind plan.Kind) plan.Masquerade {
	if kind == plan.ClusterIP {
		return pick(g, []plan.Masquerade{plan.MasqueradeOutside, plan.MasqueradeOutside, plan.MasqueradeNever, plan.MasqueradeAlways})
	}
	return pick(g, []plan.Masquerade{plan.MasqueradeAlways, plan.MasqueradeAlways, plan.MasqueradeFromNode, plan.MasqueradeNever})
}

func (g *Gen) sourceRanges(family model.Family) []netip.Prefix {
	if g.one(2) {
		return nil
	}
	var list []netip.Prefix
	for range 1 + g.rng.IntN(4) {
		if family == model.IPv4 {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(1 + g.rng.IntN(223)), byte(g.rng.IntN(256)), byte(g.rng.IntN(256)), byte(g.rng.IntN(256))}), 1+g.rng.IntN(32)))
		} else {
			a := [16]byte{0x20, 0x01, 0x0d, 0xb8, byte(g.rng.IntN(256)), byte(g.rng.IntN(256)), 15: byte(g.rng.IntN(256))}
			list = append(list, netip.PrefixFrom(netip.AddrFrom16(a), pick(g, []int{32, 40, 48, 64, 128})))
		}
	}
	return plan.NormalizePrefixes(list)
}

func (g *Gen) global() plan.Global {
	if g.o.Global != nil {
		return *g.o.Global
	}
	out := plan.Global{MasqueradeMark: 1 << pick(g, []int{14, 14, 14, 0, 31})}
	v4 := slices.Contains(g.o.Families, model.IPv4)
	add := func(family model.Family, add func()) {
		if (family == model.IPv4) == v4 || len(g.o.Families) == 2 {
			add()
		}
	}
	add(model.IPv4, func() {
		out.NodePortAddrs = append(out.NodePortAddrs, netip.AddrFrom4([4]byte{192, 168, 0, byte(1 + g.rng.IntN(9))}))
		if g.one(3) {
			out.NodePortAddrs = append(out.NodePortAddrs, netip.MustParseAddr("203.0.113.1"))
		}
		if !g.one(4) {
			out.PodSources = append(out.PodSources, netip.MustParsePrefix("10.244.0.0/16"))
		}
		if g.one(2) {
			out.ServiceCIDRs = append(out.ServiceCIDRs, netip.MustParsePrefix("10.96.0.0/12"))
		}
	})
	add(model.IPv6, func() {
		out.NodePortAddrs = append(out.NodePortAddrs, netip.MustParseAddr("fd00:192::1"))
		if !g.one(4) {
			out.PodSources = append(out.PodSources, netip.MustParsePrefix("fd00:10:244::/56"))
		}
		if g.one(2) {
			out.ServiceCIDRs = append(out.ServiceCIDRs, netip.MustParsePrefix("fd00:10:96::/108"))
		}
	})
	if g.one(4) {
		out.PodInterfaces = []string{"cali*", "cni0"}
	}
	return out
}

func (g *Gen) one(in int) bool { return g.rng.IntN(in) == 0 }

func pick[T any](g *Gen, from []T) T { return from[g.rng.IntN(len(from))] }

// vip is a Service's address: the same for all ports of it.
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
