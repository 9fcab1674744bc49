package planner

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// A part of a change of a frontend changes at least minPart endpoints, and one of maxParts of its pools' endpoints: each
// part compares all of them, in the planner and in the backend, however few it changes.
const (
	minPart  = 64
	maxParts = 64
)

// part returns a frontend on the way from old to f: all of f, except that only some endpoints have changed. Each endpoint has its old or
// its new weight, and endpoints whose weight grows and others change in equal measure, so that there is always one that takes
// connections. Either frontend may be nil. It returns f if that is little enough for the budget. Frontends with source hash are not divided:
// each part would send clients elsewhere.
func part(old, f *plan.Frontend, budget *budget) *plan.Frontend {
	if budget == nil || cmp.Or(f, old).Balance == plan.SourceHash {
		return f
	}
	from, to := old, f
	if from == nil {
		from = &plan.Frontend{}
	}
	if to == nil {
		none := plan.Pool{Verdict: plan.Reject}
		to = &plan.Frontend{Pool: none, Outside: &none}
	}
	fromOutside, toOutside := orEmpty(from.Outside), orEmpty(to.Outside)
	changes := poolChanges(&from.Pool, &to.Pool) + poolChanges(fromOutside, toOutside)
	all, weighted := 0, false
	for _, p := range []*plan.Pool{&from.Pool, &to.Pool, fromOutside, toOutside} {
		all += len(p.Endpoints)
		weighted = weighted || hasWeights(p)
	}
	n := max(minPart, budget.left/elementCost, all/maxParts)
	if changes <= 2*n || weighted && changes < plan.MaxSlots {
		return f
	}
	var out plan.Frontend
	if f != nil {
		out = *f
	} else {
		out = *old
	}
	out.Pool = partOfPool(&from.Pool, &to.Pool, n)
	if out.Outside != nil {
		outside := partOfPool(fromOutside, toOutside, n)
		out.Outside = &outside
	}
	return &out
}

// hasWeights reports whether endpoints of a pool may have more than one slot: beyond plan.MaxSlots endpoints, all have one.
func hasWeights(p *plan.Pool) bool {
	n, most := 0, uint16(0)
	for i := range p.Endpoints {
		n += min(1, int(p.Endpoints[i].Weight))
		most = max(most, p.Endpoints[i].Weight)
	}
	return most > 1 && n < plan.MaxSlots
}

// partOfPool returns a pool that differs from one by up to n endpoints, in the direction of another.
func partOfPool(from, to *plan.Pool, n int) plan.Pool {
	out := plan.Pool{Verdict: to.Verdict}
	switch old := len(from.Endpoints); {
	case old+n <= len(to.Endpoints) && slices.Equal(from.Endpoints, to.Endpoints[:old]): // a part of it: no copy for each step
		out.Endpoints = to.Endpoints[: old+n : old+n]
	case len(to.Endpoints) == 0 && n < old:
		out.Endpoints = from.Endpoints[n:]
	}
	if out.Total() == 0 && to.Total() > 0 || out.Endpoints == nil {
		out.Endpoints = mergePools(from, to, n)
	}
	if out.Total() > 0 {
		out.Verdict = plan.Forward
	}
	return out
}

// mergePools returns the endpoints of one pool, up to n of them as they are in another pool: half of them with a higher weight, if
// there are as many, so that some have weight if any in the other pool has.
func mergePools(from, to *plan.Pool, n int) []plan.Endpoint {
	grow, others := 0, 0
	for o, e := range endpointPairs(from, to) {
		switch {
		case e.Weight > o.Weight:
			grow++
		case e.Weight < o.Weight || e.Addr != o.Addr:
			others++
		}
	}
	grow = min(grow, max(n/2, n-others))
	others = min(others, n-grow)
	out := make([]plan.Endpoint, 0, len(from.Endpoints)+grow+others)
	for o, e := range endpointPairs(from, to) {
		switch {
		case e.Weight > o.Weight && grow > 0:
			grow--
			o = e
		case e.Addr == o.Addr && e.Weight == o.Weight:
			o = e // phase and deadline do not affect forwarding
		case e.Weight <= o.Weight && others > 0:
			others--
			o = e
		}
		if o.Addr.IsValid() {
			out = append(out, *o)
		}
	}
	return out
}

// endpointPairs returns the endpoints of two pools by address, a zero one where a pool does not have it.
func endpointPairs(p, q *plan.Pool) iter.Seq2[*plan.Endpoint, *plan.Endpoint] {
	return func(yield func(a, b *plan.Endpoint) bool) {
		var none plan.Endpoint
		for i, j := 0, 0; i < len(p.Endpoints) || j < len(q.Endpoints); {
			a, b, order := &none, &none, -1
			switch {
			case i == len(p.Endpoints):
				order = 1
			case j < len(q.Endpoints):
				order = p.Endpoints[i].Addr.Compare(q.Endpoints[j].Addr)
			}
			if order <= 0 {
				a, i = &p.Endpoints[i], i+1
			}
			if order >= 0 {
				b, j = &q.Endpoints[j], j+1
			}
			if !yield(a, b) {
				return
			}
		}
	}
}
