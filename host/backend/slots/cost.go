package slots

import (
	"cmp"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// change returns the cost of changing a frontend; nil is none.
func change(old, f *plan.Frontend) int {
	if old == f {
		return 0
	}
	n := 1
	if old == nil || f == nil {
		n = entry
	}
	old, f = cmp.Or(old, noFrontend), cmp.Or(f, noFrontend)
	n += slotChanges(&old.Pool, &f.Pool)
	if old.Outside != nil || f.Outside != nil {
		n += slotChanges(orEmpty(old.Outside), orEmpty(f.Outside))
	}
	n += rangeChanges(old.SourceRanges, f.SourceRanges)
	d := listed(old) - listed(f)
	return (n + max(d, -d)) * element
}

// listed returns how many elements the endpoints of a frontend have beside their slots.
func listed(f *plan.Frontend) int {
	each := 0
	if f.Affinity > 0 {
		each += 2
	}
	if f.Outcomes {
		each += 3
	}
	return each * (len(f.Pool.Endpoints) + len(orEmpty(f.Outside).Endpoints))
}

// rangeChanges returns how many source ranges are added and deleted. Both lists are sorted.
func rangeChanges(old, list []netip.Prefix) (n int) {
	for len(old) > 0 && len(list) > 0 {
		order := old[0].Compare(list[0])
		if order <= 0 {
			old = old[1:]
		}
		if order >= 0 {
			list = list[1:]
		}
		if order != 0 {
			n++
		}
	}
	return n + len(old) + len(list)
}

// slotChanges returns how many slots of a backend differ, about, and counts one for each endpoint whose weight differs otherwise:
// a change of a few weights can be one of a thousand slots.
func slotChanges(p, q *plan.Pool) (n int) {
	had, has := slotsOf(p), slotsOf(q)
	weighted := had.slots > 0 || has.slots > 0
	for a, b := range pairs(p, q) {
		d := had.of(a.Weight) - has.of(b.Weight)
		if d = max(d, -d); d == 0 && a.Weight != b.Weight && weighted || a.Addr != b.Addr {
			d++ // a new endpoint has more than slots
		}
		n += d
	}
	return n
}

// weights says how many slots a data plane has for a weight, give or take one that rounding distributes; with no slots, each
// endpoint with weight has one.
type weights struct{ slots, sum int }

func slotsOf(p *plan.Pool) weights {
	sum, g, n := 0, 0, 0
	for i := range p.Endpoints {
		if w := int(p.Endpoints[i].Weight); w > 0 {
			sum, g, n = sum+w, gcd(g, w), n+1
		}
	}
	if n == 0 || n >= Max {
		return weights{0, 1}
	}
	return weights{min(sum/g, Max), sum}
}

func (s weights) of(weight uint16) int {
	if weight == 0 {
		return 0
	}
	return max(1, int(weight)*s.slots/s.sum)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
