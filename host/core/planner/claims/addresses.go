package claims

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
)

// addrUse is an address that a Service has. An address belongs to the Services that have it by the strongest allocation: the
// API server allocates cluster IPs, a controller load balancer addresses; external IPs are what anyone may write into a
// Service. Frontends of a weaker kind at the address, at whatever port, are not in the plan. Several Services may share a
// load balancer address, or an external IP that is nobody's load balancer address.
type addrUse struct {
	by   *claimant
	kind plan.Kind
}

// addresses are whose each address is.
type addresses struct {
	uses          map[netip.Addr][]addrUse // the Services that have an address, by precedence
	shared        map[netip.Addr]bool      // see SetShared
	reserved      map[plan.Key]bool        // see SetReserved
	reservedAddrs map[netip.Addr]bool      // those of reserved
	owner         func(netip.Addr) string  // see SetForeign
}

// allowed reports whether the address of a frontend belongs to its Service.
func (a *addresses) allowed(f *plan.Frontend) bool {
	kind := f.Kind
	if a.foreign(f) != "" {
		return false
	}
	if kind == plan.ExternalIP {
		if a.reserved[f.Key] {
			return false
		}
		if a.shared[f.Key.Addr] {
			kind = plan.LoadBalancer
		}
	}
	uses := a.uses[f.Key.Addr]
	return len(uses) == 0 || rankOf(kind) <= rankOf(uses[0].kind)
}

// foreign returns whose the address of a frontend is if the data plane must not add it to this node, "" if it may.
func (a *addresses) foreign(f *plan.Frontend) string {
	at := f.Key.Addr
	switch {
	case a.owner == nil || f.Kind != plan.ExternalIP && f.Kind != plan.LoadBalancer || a.shared[at]:
		return ""
	case a.reservedAddrs[at]:
		return "an API server"
	}
	return a.owner(at)
}

// Addr is an address of a Service.
type Addr struct {
	IP     netip.Addr
	Kind   plan.Kind // ClusterIP, LoadBalancer or ExternalIP: the strongest one
	Served bool
}

// AddrsOf returns the addresses of a Service, each once, in the order of their precedence, then of the Service.
func AddrsOf(svc *model.Service) []Addr {
	n := len(svc.ClusterIPs) + len(svc.LoadBalancerIPs) + len(svc.ReservedIPs) + len(svc.ExternalIPs)
	out := make([]Addr, 0, n)
	var seen map[netip.Addr]bool
	if n > 8 {
		seen = make(map[netip.Addr]bool, n)
	}
	add := func(list []netip.Addr, kind plan.Kind, served bool) {
		for _, a := range list {
			if seen == nil {
				if slices.ContainsFunc(out, func(s Addr) bool { return s.IP == a }) {
					continue
				}
			} else if seen[a] {
				continue
			} else {
				seen[a] = true
			}
			out = append(out, Addr{a, kind, served})
		}
	}
	add(svc.ClusterIPs, plan.ClusterIP, true)
	add(svc.LoadBalancerIPs, plan.LoadBalancer, true)
	add(svc.ReservedIPs, plan.LoadBalancer, false)
	add(svc.ExternalIPs, plan.ExternalIP, true)
	return out
}

// SetForeign sets who says whose an address is that no Service may have as an external or load balancer IP, "" for none; nil: any
// may.
func (t *Table) SetForeign(owner func(netip.Addr) string) {
	t.addrs.owner = owner
	for a := range t.addrs.uses {
		if strongest(t.addrs.uses[a]) >= rankOf(plan.LoadBalancer) {
			t.reassessAddr(a, nil)
		}
	}
}

// useAddrs replaces the addresses of a Service by those of svc, nil for none.
func (t *Table) useAddrs(c *claimant, svc *model.Service) {
	old := c.svc
	if svc == nil {
		svc = &model.Service{Name: old.Name, Created: old.Created}
	}
	c.svc = svc
	if svc == old || slices.Equal(svc.ClusterIPs, old.ClusterIPs) && slices.Equal(svc.LoadBalancerIPs, old.LoadBalancerIPs) &&
		slices.Equal(svc.ReservedIPs, old.ReservedIPs) && slices.Equal(svc.ExternalIPs, old.ExternalIPs) {
		return
	}
	had, has := AddrsOf(old), AddrsOf(svc)
	for _, list := range [][]Addr{had, has} {
		slices.SortFunc(list, func(x, y Addr) int { return cmp.Or(x.IP.Compare(y.IP), cmp.Compare(x.Kind, y.Kind)) })
	}
	for len(had) > 0 || len(has) > 0 {
		order := -1
		switch {
		case len(had) == 0:
			order = 1
		case len(has) > 0:
			order = cmp.Or(had[0].IP.Compare(has[0].IP), cmp.Compare(had[0].Kind, has[0].Kind))
		}
		if order < 0 {
			t.useAddr(had[0].IP, addrUse{c, had[0].Kind}, false)
		} else if order > 0 {
			t.useAddr(has[0].IP, addrUse{c, has[0].Kind}, true)
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
func (t *Table) useAddr(a netip.Addr, u addrUse, add bool) {
	uses := t.addrs.uses[a]
	before := strongest(uses)
	at, found := slices.BinarySearchFunc(uses, u, func(x, y addrUse) int {
		t.Work.Comparisons++
		return cmp.Or(cmp.Compare(rankOf(x.kind), rankOf(y.kind)), compareAge(x.by, y.by))
	})
	switch {
	case add && !found:
		uses = slices.Insert(uses, at, u)
	case !add && found:
		uses = slices.Delete(uses, at, at+1)
	}
	if len(uses) == 0 {
		delete(t.addrs.uses, a)
	} else {
		t.addrs.uses[a] = uses
	}
	if strongest(uses) != before {
		t.reassessAddr(a, u.by)
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
func (t *Table) SetShared(addrs []netip.Addr) {
	shared := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		shared[a] = true
	}
	old := t.addrs.shared
	t.addrs.shared = shared
	for a := range shared {
		if !old[a] {
			t.reassessAddr(a, nil)
		}
	}
	for a := range old {
		if !shared[a] {
			t.reassessAddr(a, nil)
		}
	}
}

// SetReserved sets the keys at which the API server listens. They are nobody's external IP.
func (t *Table) SetReserved(keys []plan.Key) {
	old := t.addrs.reserved
	t.addrs.reserved = make(map[plan.Key]bool, len(keys))
	for _, k := range keys {
		t.addrs.reserved[k] = true
	}
	hadAddrs := t.addrs.reservedAddrs
	t.addrs.reservedAddrs = map[netip.Addr]bool{}
	for k := range old {
		t.resolve(k)
	}
	for k := range t.addrs.reserved {
		t.addrs.reservedAddrs[k.Addr] = true
		t.resolve(k)
	}
	for _, list := range []map[netip.Addr]bool{hadAddrs, t.addrs.reservedAddrs} {
		for a := range list {
			t.reassessAddr(a, nil)
		}
	}
}

// reassessment is the frontends of a Service at an address, from a key on, whose right to the address may have changed.
type reassessment struct {
	by   *claimant
	from plan.Key
}

// reassessAddr schedules the Services that have an address, except the one whose frontends are about to be set.
func (t *Table) reassessAddr(a netip.Addr, except *claimant) {
	for _, u := range t.addrs.uses[a] {
		if u.by != except {
			t.reassess = append(t.reassess, reassessment{u.by, plan.Key{Addr: a}})
		}
	}
}

// Reassess decides again who gets the frontends at addresses that have changed hands, as far as the budget allows. It
// reports whether that is all of them.
func (t *Table) Reassess(budget *cost.Budget) (done bool) {
	for len(t.reassess) > 0 {
		r := &t.reassess[0]
		at, _ := slices.BinarySearchFunc(r.by.frontends, r.from, func(f *plan.Frontend, k plan.Key) int { return f.Key.Compare(k) })
		for ; at < len(r.by.frontends) && r.by.frontends[at].Key.Addr == r.from.Addr; at++ {
			f := r.by.frontends[at]
			if budget.Spent() {
				r.from = f.Key
				return false
			}
			before := t.plan.Frontends[f.Key]
			t.resolve(f.Key)
			if now := t.plan.Frontends[f.Key]; now != before && t.caps.Step != nil {
				_, programming := t.caps.Step(before, now, math.MaxInt)
				budget.Spend(programming)
			}
		}
		t.reassess = t.reassess[1:]
	}
	t.reassess = nil
	return true
}
