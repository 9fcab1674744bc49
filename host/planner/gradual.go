package planner

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// minPart is the least number of endpoints of a frontend that a step changes, so that large pools make progress in small steps.
const minPart = 64

// part returns a frontend on the way from old to f: all of f, except that only some endpoints have changed, those that are added
// first. Either may be nil. It returns f if that is little enough for the budget. Pools with weights are not divided: a part of
// them would have other shares. Neither are those with source hash: each part would send clients elsewhere.
func part(old, f *plan.Frontend, budget *budget) *plan.Frontend {
	if budget == nil || cmp.Or(f, old).Balance == plan.SourceHash {
		return f
	}
	n := max(minPart, budget.left/elementCost)
	from, to := old, f
	if from == nil {
		from = &plan.Frontend{}
	}
	if to == nil {
		none := plan.Pool{Verdict: plan.Reject}
		to = &plan.Frontend{Pool: none, Outside: &none}
	}
	fromOutside, toOutside := orEmpty(from.Outside), orEmpty(to.Outside)
	if poolChanges(&from.Pool, &to.Pool)+poolChanges(fromOutside, toOutside) <= 2*n {
		return f
	}
	for _, p := range []*plan.Pool{&from.Pool, &to.Pool, fromOutside, toOutside} {
		if slices.ContainsFunc(p.Endpoints, func(e plan.Endpoint) bool { return e.Weight > 1 }) {
			return f
		}
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

// partOfPool returns a pool that differs from one by up to n endpoints, in the direction of another.
func partOfPool(from, to *plan.Pool, n int) plan.Pool {
	added := 0
	for i, j := 0, 0; j < len(to.Endpoints); j++ {
		for i < len(from.Endpoints) && from.Endpoints[i].Addr.Compare(to.Endpoints[j].Addr) < 0 {
			i++
		}
		if i == len(from.Endpoints) || from.Endpoints[i].Addr != to.Endpoints[j].Addr {
			added++
		}
	}
	add := min(n, added)
	remove := n - add
	out := plan.Pool{Verdict: to.Verdict}
	switch old := len(from.Endpoints); {
	case add == n && slices.Equal(from.Endpoints, to.Endpoints[:min(old, len(to.Endpoints))]): // a part of it: no copy for each step
		out.Endpoints = to.Endpoints[: old+add : old+add]
	case len(to.Endpoints) == 0 && remove < old:
		out.Endpoints = from.Endpoints[remove:]
	default:
		out.Endpoints = mergePools(from, to, add, remove)
	}
	if out.Total() > 0 {
		out.Verdict = plan.Forward
	} else if to.Verdict == plan.Forward { // those with weight come later
		return *to
	}
	return out
}

// mergePools returns the endpoints of one pool, with up to so many of another that are added, and without up to so many that are not in it.
func mergePools(from, to *plan.Pool, add, remove int) []plan.Endpoint {
	out := make([]plan.Endpoint, 0, len(from.Endpoints)+add)
	i, j := 0, 0
	for i < len(from.Endpoints) || j < len(to.Endpoints) {
		order := -1
		switch {
		case i == len(from.Endpoints):
			order = 1
		case j < len(to.Endpoints):
			order = from.Endpoints[i].Addr.Compare(to.Endpoints[j].Addr)
		}
		switch {
		case order < 0 && remove > 0:
			remove--
		case order < 0:
			out = append(out, from.Endpoints[i])
		case order == 0:
			out = append(out, to.Endpoints[j])
		case add > 0:
			add--
			out = append(out, to.Endpoints[j])
		}
		if order <= 0 {
			i++
		}
		if order >= 0 {
			j++
		}
	}
	return out
}
