package planner

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// addrUse is an address that a Service has. An address belongs to the Services that have it by the strongest allocation: the
// API server allocates cluster IPs, a controller load balancer addresses; external IPs are what anyone may write into a
// Service. Frontends of a weaker kind at the address, at whatever port, are not in the plan. Several Services may share a
// load balancer address, or an external IP that is nobody's load balancer address.
type addrUse struct {
	by   *claimant
	kind plan.Kind
}

// serviceAddr is an address of a Service.
type serviceAddr struct {
	addr   netip.Addr
	kind   plan.Kind // ClusterIP, LoadBalancer or ExternalIP: the strongest one
	served bool
}

// addrsOf returns the addresses of a Service, each once, in the order of their precedence, then of the Service.
func addrsOf(svc *model.Service) []serviceAddr {
	n := len(svc.ClusterIPs) + len(svc.LoadBalancerIPs) + len(svc.ReservedIPs) + len(svc.ExternalIPs)
	out := make([]serviceAddr, 0, n)
	var seen map[netip.Addr]bool
	if n > 8 {
		seen = make(map[netip.Addr]bool, n)
	}
	add := func(list []netip.Addr, kind plan.Kind, served bool) {
		for _, a := range list {
			if seen == nil {
				if slices.ContainsFunc(out, func(s serviceAddr) bool { return s.addr == a }) {
					continue
				}
			} else if seen[a] {
				continue
			} else {
				seen[a] = true
			}
			out = append(out, serviceAddr{a, kind, served})
		}
	}
	add(svc.ClusterIPs, plan.ClusterIP, true)
	add(svc.LoadBalancerIPs, plan.LoadBalancer, true)
	add(svc.ReservedIPs, plan.LoadBalancer, false)
	add(svc.ExternalIPs, plan.ExternalIP, true)
	return out
}

// allowed reports whether the address of a frontend belongs to its Service.
func (b *builder) allowed(f *plan.Frontend) bool {
	kind := f.Kind
	if b.foreign(f) != "" {
		return false
	}
	if kind == plan.ExternalIP {
		if b.reserved[f.Key] {
			return false
		}
		if b.shared[f.Key.Addr] {
			kind = plan.LoadBalancer
		}
	}
	uses := b.addrs[f.Key.Addr]
	return len(uses) == 0 || rankOf(kind) <= rankOf(uses[0].kind)
}

// foreign returns whose the address of a frontend is if the data plane must not add it to this node, "" if it may.
func (b *builder) foreign(f *plan.Frontend) string {
	a := f.Key.Addr
	switch {
	case b.owner == nil || f.Kind != plan.ExternalIP && f.Kind != plan.LoadBalancer || b.shared[a]:
		return ""
	case b.reservedAddrs[a]:
		return "an API server"
	}
	return b.owner(a)
}

// reassessExternal schedules the Services that have an external or load balancer IP.
func (b *builder) reassessExternal() {
	for a := range b.addrs {
		if strongest(b.addrs[a]) >= rankOf(plan.LoadBalancer) {
			b.reassessAddr(a, nil)
		}
	}
}

// useAddrs replaces the addresses of a Service by those of svc, nil for none.
func (b *builder) useAddrs(c *claimant, svc *model.Service) {
	old := c.svc
	if svc == nil {
		svc = &model.Service{Name: old.Name, Created: old.Created}
	}
	c.svc = svc
	if svc == old || slices.Equal(svc.ClusterIPs, old.ClusterIPs) && slices.Equal(svc.LoadBalancerIPs, old.LoadBalancerIPs) &&
		slices.Equal(svc.ReservedIPs, old.ReservedIPs) && slices.Equal(svc.ExternalIPs, old.ExternalIPs) {
		return
	}
	had, has := addrsOf(old), addrsOf(svc)
	for _, list := range [][]serviceAddr{had, has} {
		slices.SortFunc(list, func(x, y serviceAddr) int { return cmp.Or(x.addr.Compare(y.addr), cmp.Compare(x.kind, y.kind)) })
	}
	for len(had) > 0 || len(has) > 0 {
		order := -1
		switch {
		case len(had) == 0:
			order = 1
		case len(has) > 0:
			order = cmp.Or(had[0].addr.Compare(has[0].addr), cmp.Compare(had[0].kind, has[0].kind))
		}
		if order < 0 {
			b.useAddr(had[0].addr, addrUse{c, had[0].kind}, false)
		} else if order > 0 {
			b.useAddr(has[0].addr, addrUse{c, has[0].kind}, true)
		}
		if order <= 0 {
			had = had[1:]
		}
		if order >= 0 {
			has = has[1:]
		}
	}
}

// useAddr adds or removes the use of an address.
func (b *builder) useAddr(a netip.Addr, u addrUse, add bool) {
	uses := b.addrs[a]
	before := strongest(uses)
	at, found := slices.BinarySearchFunc(uses, u, func(x, y addrUse) int {
		b.work.comparisons++
		return cmp.Or(cmp.Compare(rankOf(x.kind), rankOf(y.kind)), compareAge(x.by, y.by))
	})
	switch {
	case add && !found:
		uses = slices.Insert(uses, at, u)
	case !add && found:
		uses = slices.Delete(uses, at, at+1)
	}
	if len(uses) == 0 {
		delete(b.addrs, a)
	} else {
		b.addrs[a] = uses
	}
	if strongest(uses) != before {
		b.reassessAddr(a, u.by)
	}
}

func strongest(uses []addrUse) int {
	if len(uses) == 0 {
		return rankOf(plan.ExternalIP)
	}
	return rankOf(uses[0].kind)
}

// SetShared sets the addresses of this node. Where a controller publishes node addresses as load balancer addresses, they
// stay available as external IPs, at other ports.
func (b *builder) SetShared(addrs []netip.Addr) {
	shared := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		shared[a] = true
	}
	old := b.shared
	b.shared = shared
	for a := range shared {
		if !old[a] {
			b.reassessAddr(a, nil)
		}
	}
	for a := range old {
		if !shared[a] {
			b.reassessAddr(a, nil)
		}
	}
}

// SetReserved sets the keys at which the API server listens. They are nobody's external IP.
func (b *builder) SetReserved(keys []plan.Key) {
	old := b.reserved
	b.reserved = make(map[plan.Key]bool, len(keys))
	for _, k := range keys {
		b.reserved[k] = true
	}
	hadAddrs := b.reservedAddrs
	b.reservedAddrs = map[netip.Addr]bool{}
	for k := range old {
		b.resolve(k)
	}
	for k := range b.reserved {
		b.reservedAddrs[k.Addr] = true
		b.resolve(k)
	}
	for _, list := range []map[netip.Addr]bool{hadAddrs, b.reservedAddrs} {
		for a := range list {
			b.reassessAddr(a, nil)
		}
	}
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

// reassessment is the frontends of a Service at an address, from a key on, whose right to the address may have changed.
type reassessment struct {
	by   *claimant
	from plan.Key
}

// reassessAddr schedules the Services that have an address, except the one whose frontends are about to be set.
func (b *builder) reassessAddr(a netip.Addr, except *claimant) {
	for _, u := range b.addrs[a] {
		if u.by != except {
			b.reassess = append(b.reassess, reassessment{u.by, plan.Key{Addr: a}})
		}
	}
}

// Reassess decides again who gets the frontends at addresses that have changed hands, as far as the budget allows. It
// reports whether that is all of them.
func (b *builder) Reassess(budget *budget) (done bool) {
	for len(b.reassess) > 0 {
		r := &b.reassess[0]
		at, _ := slices.BinarySearchFunc(r.by.frontends, r.from, func(f *plan.Frontend, k plan.Key) int { return f.Key.Compare(k) })
		for ; at < len(r.by.frontends) && r.by.frontends[at].Key.Addr == r.from.Addr; at++ {
			f := r.by.frontends[at]
			if budget.spent() {
				r.from = f.Key
				return false
			}
			before := b.plan.Frontends[f.Key]
			b.resolve(f.Key)
			if now := b.plan.Frontends[f.Key]; now != before && b.caps.Step != nil {
				_, cost := b.caps.Step(before, now, math.MaxInt)
				budget.spend(cost)
			}
		}
		b.reassess = b.reassess[1:]
	}
	b.reassess = nil
	return true
}
