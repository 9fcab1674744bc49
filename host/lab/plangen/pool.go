package plangen

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// pool makes a pool: mostly equal weights, as most Services have, often a few different ones, sometimes extremes.
func (g *Gen) pool(family model.Family) plan.Pool {
	if g.one(8) {
		return g.finish(nil)
	}
	style := g.rng.IntN(8)
	var list []plan.Endpoint
	for range 1 + g.rng.IntN(g.o.Members) {
		if addr, ok := g.member(family); ok {
			list = append(list, plan.Endpoint{Addr: addr, Weight: g.weight(style), Phase: plan.Active})
		}
	}
	return g.finish(list)
}

// weight by style: 0 to 3 all one, 4 and 5 small ones, 6 anything, 7 the extremes.
func (g *Gen) weight(style int) uint16 {
	w := uint16(1)
	switch style {
	case 4, 5:
		w = uint16(g.rng.IntN(101))
	case 6:
		w = uint16(g.rng.IntN(65536))
	case 7:
		w = pick(g, []uint16{0, 1, 2, 65534, 65535, 65535})
	}
	return min(w, g.o.MaxWeight)
}

func (g *Gen) member(family model.Family) (netip.AddrPort, bool) {
	if len(g.o.Targets) > 0 {
		var of []netip.AddrPort
		for _, t := range g.o.Targets {
			if model.FamilyOf(t.Addr()) == family {
				of = append(of, t)
			}
		}
		if len(of) == 0 {
			return netip.AddrPort{}, false
		}
		return pick(g, of), true
	}
	a, b := byte(g.rng.IntN(3)), byte(1+g.rng.IntN(20))
	addr := netip.AddrFrom4([4]byte{10, 244, a, b})
	if family == model.IPv6 {
		addr = netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0x02, 0x44, 14: a, 15: b})
	}
	return netip.AddrPortFrom(addr, pick(g, []uint16{8080, 8080, 9090, 65535})), true
}

// finish puts members in order, gives phases that fit, and sets the verdict.
func (g *Gen) finish(list []plan.Endpoint) plan.Pool {
	slices.SortFunc(list, func(a, b plan.Endpoint) int { return a.Addr.Compare(b.Addr) })
	list = slices.CompactFunc(list, func(a, b plan.Endpoint) bool { return a.Addr == b.Addr })
	p := plan.Pool{Endpoints: list}
	for i := range list {
		m := &list[i]
		switch {
		case m.Weight == 0 || g.one(10):
			m.Phase = plan.Draining
		default:
			m.Phase = plan.Active
		}
		m.Deadline = 0
		if m.Phase == plan.Draining && g.one(2) {
			m.Deadline = 1_750_000_000_000 + g.rng.Int64N(1_000_000_000)
		}
	}
	if len(list) == 0 {
		p.Endpoints = nil
	}
	if p.Total() == 0 {
		p.Verdict = pick(g, []plan.Verdict{plan.Reject, plan.Drop})
	}
	return p
}

// localPart makes what outside sources get: some of the members, or none.
func (g *Gen) localPart(p *plan.Pool) *plan.Pool {
	var list []plan.Endpoint
	for _, m := range p.Endpoints {
		if g.one(2) {
			list = append(list, m)
		}
	}
	out := g.finish(list)
	if out.Verdict == plan.Reject && len(p.Endpoints) > 0 {
		out.Verdict = plan.Drop
	}
	return &out
}

// mutate does one thing to the members of a pool.
func (g *Gen) mutate(p plan.Pool, family model.Family) plan.Pool {
	list := slices.Clone(p.Endpoints)
	style := g.rng.IntN(8)
	op := g.rng.IntN(7)
	if len(list) == 0 {
		return g.pool(family)
	}
	i := g.rng.IntN(len(list))
	switch op {
	case 0, 1: // one more
		if addr, ok := g.member(family); ok && len(list) < g.o.Members {
			list = append(list, plan.Endpoint{Addr: addr, Weight: g.weight(style)})
		}
	case 2: // one fewer
		list = slices.Delete(list, i, i+1)
	case 3: // one replaced
		if addr, ok := g.member(family); ok {
			list[i].Addr = addr
		}
	case 4: // one drains
		list[i].Weight = 0
	case 5: // every weight anew
		for i := range list {
			list[i].Weight = g.weight(style)
		}
	case 6: // one weight
		list[i].Weight = g.weight(6)
	}
	return g.finish(list)
}
