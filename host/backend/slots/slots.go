// Package slots divides changes of frontends into steps of a bounded cost, for data planes that give an endpoint slots of a table
// by its weight: nftables draws one of them, and IPVS walks them. The core knows weights and what a step costs, not slots.
package slots

import (
	"cmp"
	"math"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Max is plan.Caps.MaxTotal: up to so many slots, the endpoints of a pool have them by weight, and with more endpoints each has
// one.
const Max = 1000

// element is the cost of changing an element of the kernel's sets, such as a slot, in the unit of plan.Caps.Step; entry is how
// many elements make a frontend known, beside its slots.
const (
	element = 50
	entry   = 3
)

// A part of a change of a frontend changes at least minPart endpoints of a pool, or source ranges, and one of maxParts of them:
// each part compares all of them, in the planner and in the backend, however few it changes.
const (
	minPart  = 64
	maxParts = 128
)

// Step implements plan.Caps.Step. Some endpoints and source ranges are those of to, the others as before. Pools with source hash
// are not divided: each part would send clients elsewhere.
func Step(from, to *plan.Frontend, budget int) (next *plan.Frontend, cost int) {
	if next = to; budget < math.MaxInt {
		next = part(from, to, budget)
	}
	return next, change(from, next)
}

// part returns what a change of about the cost of the budget leads to.
func part(old, f *plan.Frontend, budget int) *plan.Frontend {
	from, to := cmp.Or(old, noFrontend), cmp.Or(f, noFrontend)
	sources := sourcesTo(old, f)
	n, all, left, last := budget/element, max(len(sources.from), len(sources.to)), sources.left(), true
	var pool, outside transition
	divided := cmp.Or(f, old).Balance != plan.SourceHash
	if divided {
		pool, outside = transitionTo(&from.Pool, &to.Pool), transitionTo(orEmpty(from.Outside), orEmpty(to.Outside))
		n, all = budget/max(pool.cost(), outside.cost()), max(all, pool.endpoints(), outside.endpoints())
		left, last = left+pool.left()+outside.left(), pool.last && outside.last
	}
	n = max(minPart, n, all/maxParts)
	if last && left <= n+n/4 { // a small rest is not worth a part
		return f
	}
	out := *cmp.Or(f, old)
	out.SourceRanges = sources.after(n)
	if !divided {
		return &out
	}
	out.Pool = pool.after(n)
	if out.Outside != nil {
		p := outside.after(n)
		out.Outside = &p
	}
	return &out
}

// noFrontend is a frontend that does not exist, noPool a pool that does not; both are read-only.
var (
	noFrontend = &plan.Frontend{Pool: plan.Pool{Verdict: plan.Reject}, Outside: &plan.Pool{Verdict: plan.Reject}}
	noPool     = &plan.Pool{}
)

func orEmpty(p *plan.Pool) *plan.Pool { return cmp.Or(p, noPool) }
