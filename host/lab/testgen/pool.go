package testgen

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// pool returns a random pool: mostly with equal weights, as most Services have, often with different ones, sometimes with
// extremes.
func (g *Plans) pool(family model.Family) plan.Pool {
	if g.oneIn(8) {
		return g.newPool(nil)
	}
	style := g.rng.IntN(8)
	var list []plan.Endpoint
	for range 1 + g.rng.IntN(g.options.Endpoints) {
		if addr, ok := g.endpoint(family); ok {
			list = append(list, plan.Endpoint{Addr: addr, Weight: g.weight(style), Phase: plan.Active})
		}
	}
	return g.newPool(list)
}

// weight returns a weight by style: 0 to 3 one, 4 and 5 small, 6 any, 7 extremes.
func (g *Plans) weight(style int) uint16 {
	w := uint16(1)
	switch style {
	case 4, 5:
		w = uint16(g.rng.IntN(101))
	case 6:
		w = uint16(g.rng.IntN(65536))
	case 7:
		w = pick(g.rng, []uint16{0, 1, 2, 65534, 65535, 65535})
	}
	return min(w, g.options.MaxWeight)
}

func (g *Plans) endpoint(family model.Family) (netip.AddrPort, bool) {
	if len(g.options.Targets) > 0 {
		var targets []netip.AddrPort
		for _, t := range g.options.Targets {
			if model.FamilyOf(t.Addr()) == family {
				targets = append(targets, t)
			}
		}
		if len(targets) == 0 {
			return netip.AddrPort{}, false
		}
		return pick(g.rng, targets), true
	}
	a, b := byte(g.rng.IntN(3)), byte(1+g.rng.IntN(20))
	addr := netip.AddrFrom4([4]byte{10, 244, a, b})
	if family == model.IPv6 {
		addr = netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x10, 0x02, 0x44, 14: a, 15: b})
	}
	return netip.AddrPortFrom(addr, pick(g.rng, []uint16{8080, 8080, 9090, 65535})), true
}

// newPool sorts endpoints and sets phases, deadlines and the verdict.
func (g *Plans) newPool(list []plan.Endpoint) plan.Pool {
	slices.SortFunc(list, func(a, b plan.Endpoint) int { return a.Addr.Compare(b.Addr) })
	list = slices.CompactFunc(list, func(a, b plan.Endpoint) bool { return a.Addr == b.Addr })
	p := plan.Pool{Endpoints: list}
	for i := range list {
		m := &list[i]
		m.Phase = plan.Active
		if m.Weight == 0 || g.oneIn(10) {
			m.Phase = plan.Draining
		}
		m.Deadline = 0
		if m.Phase == plan.Draining && g.oneIn(2) {
			m.Deadline = 1_750_000_000_000 + g.rng.Int64N(1_000_000_000)
		}
	}
	if len(list) == 0 {
		p.Endpoints = nil
	}
	if p.Total() == 0 {
		p.Verdict = pick(g.rng, []plan.Verdict{plan.Reject, plan.Drop})
	}
	return p
}

// localPart returns a pool of some endpoints of p, or none, as for externalTrafficPolicy Local.
func (g *Plans) localPart(p *plan.Pool) *plan.Pool {
	var list []plan.Endpoint
	for _, m := range p.Endpoints {
		if g.oneIn(2) {
			list = append(list, m)
		}
	}
	out := g.newPool(list)
	if out.Verdict == plan.Reject && len(p.Endpoints) > 0 {
		out.Verdict = plan.Drop
	}
	return &out
}

// changePool makes one change to the endpoints of a pool.
func (g *Plans) changePool(p plan.Pool, family model.Family) plan.Pool {
	list := slices.Clone(p.Endpoints)
	style := g.rng.IntN(8)
	op := g.rng.IntN(7)
	if len(list) == 0 {
		return g.pool(family)
	}
	i := g.rng.IntN(len(list))
	switch op {
	case 0, 1: // add one
		if addr, ok := g.endpoint(family); ok && len(list) < g.options.Endpoints {
			list = append(list, plan.Endpoint{Addr: addr, Weight: g.weight(style)})
		}
	case 2: // delete one
		list = slices.Delete(list, i, i+1)
	case 3: // replace one
		if addr, ok := g.endpoint(family); ok {
			list[i].Addr = addr
		}
	case 4: // drain one
		list[i].Weight = 0
	case 5: // change all weights
		for i := range list {
			list[i].Weight = g.weight(style)
		}
	case 6: // change one weight
		list[i].Weight = g.weight(6)
	}
	return g.newPool(list)
}
