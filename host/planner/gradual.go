package planner

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// A part of a change of a frontend changes at least minPart endpoints, and one of maxParts of its pools' endpoints: each
// part compares all of them, in the planner and in the backend, however few it changes.
const (
	minPart  = 64
	maxParts = 64
)

// part returns a frontend on the way from old to f: all of f, except that only some endpoints have changed. Endpoints whose weight grows
// and others change in equal measure, so that there is always one that takes connections. Of pools with weights, see plan.Interpolate, all
// endpoints change a little; of others, each has its old or its new weight. Either frontend may be nil. It returns f if that is little
// enough for the budget. Frontends with source hash are not divided: each part would send clients elsewhere.
func part(old, f *plan.Frontend, budget *budget) *plan.Frontend {
	if budget == nil || cmp.Or(f, old).Balance == plan.SourceHash {
		return f
	}
	from, to := cmp.Or(old, noFrontend), cmp.Or(f, noFrontend)
	fromOutside, toOutside := orEmpty(from.Outside), orEmpty(to.Outside)
	all, slots, weighted := 0, true, false
	for _, p := range [...]*plan.Pool{&from.Pool, &to.Pool, fromOutside, toOutside} {
		all = max(all, len(p.Endpoints))
		slots = slots && len(p.Endpoints) < plan.MaxSlots
		weighted = weighted || slices.ContainsFunc(p.Endpoints, func(e plan.Endpoint) bool { return e.Weight > 1 })
	}
	count, divide, cost := poolChanges, partOfPool, 2*elementCost // the slot of another endpoint, or one with its hairpin
	if slots && weighted {
		count, divide, cost = slotChanges, plan.Interpolate, elementCost
	}
	n := max(minPart, budget.left/cost, all/maxParts)
	if count(&from.Pool, &to.Pool)+count(fromOutside, toOutside) <= n+n/4 { // a small rest is not worth a part
		return f
	}
	var out plan.Frontend
	if f != nil {
		out = *f
	} else {
		out = *old
	}
	out.Pool = divide(&from.Pool, &to.Pool, n)
	if out.Outside != nil {
		outside := divide(fromOutside, toOutside, n)
		out.Outside = &outside
	}
	return &out
}

// noFrontend is a frontend that does not exist; read-only.
var noFrontend = &plan.Frontend{Pool: plan.Pool{Verdict: plan.Reject}, Outside: &plan.Pool{Verdict: plan.Reject}}

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
	for o, e := range plan.Pairs(from, to) {
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
	for o, e := range plan.Pairs(from, to) {
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
