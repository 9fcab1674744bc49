package slots

import (
	"cmp"
	"iter"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// interpolate returns a pool between two others, for which a backend with Caps.Ratios changes about n slots: each endpoint has
// gained or lost the same fraction of the slots that it gains or loses in all. Both pools have fewer than Max endpoints with
// weight. The weights of the result are its slots, so that repeated calls reach the second pool. If it finds no such pool, which
// is rare, it returns the second one.
func interpolate(from, to *plan.Pool, n int) plan.Pool {
	had, has := exactSlots(from), exactSlots(to)
	var moves []slotMove
	gain, loss := 0, 0
	for a, b := range pairs(&had, &has) {
		m := slotMove{from: int(a.Weight), now: int(a.Weight), to: int(b.Weight)}
		gain, loss = gain+max(0, m.to-m.from), loss+max(0, m.from-m.to)
		moves = append(moves, m)
	}
	if gain+loss <= n {
		return *to
	}
	moveSlots(moves, 1, gain, divideUp(gain*n, gain+loss))
	moveSlots(moves, -1, loss, divideUp(loss*n, gain+loss))
	if !toLowestTerms(moves) {
		return *to
	}
	out := plan.Pool{Verdict: to.Verdict, Endpoints: make([]plan.Endpoint, 0, len(moves))}
	i := 0
	for a, b := range pairs(from, to) {
		m, e := &moves[i], b
		if m.now != m.to && a.Addr.IsValid() {
			e = a // it keeps its phase and deadline until it has its new weight
		}
		i++
		if e.Addr.IsValid() && (m.now > 0 || e.Weight == 0) {
			out.Endpoints = append(out.Endpoints, *e)
			out.Endpoints[len(out.Endpoints)-1].Weight = uint16(m.now)
		}
	}
	if out.Total() > 0 {
		out.Verdict = plan.Forward
	}
	return out
}

// slotMove is how many slots an endpoint has, shall have, and has in between.
type slotMove struct{ from, to, now int }

// exactSlots returns a pool with the weights that a backend has.
func exactSlots(p *plan.Pool) plan.Pool {
	out := plan.Pool{Endpoints: slices.Clone(p.Endpoints)}
	plan.ReduceWeights(out.Endpoints, Max)
	return out
}

// moveSlots moves some of the slots in total that endpoints gain (sign 1) or lose (-1), of each in proportion to its own.
func moveSlots(moves []slotMove, sign, total, some int) {
	rest := 0
	for i := range moves {
		m := &moves[i]
		if d := sign * (m.to - m.from); d > 0 {
			rest += d * some
			m.now += sign * (rest / total)
			rest %= total
		}
	}
}

// maxTerms bounds the endpoints whose slots toLowestTerms changes in vain.
const maxTerms = 16

// toLowestTerms takes back some of the moves if the slots have a common divisor, so that they have none: a backend would have
// fewer slots. It reports whether it could, and at least one move is left.
func toLowestTerms(moves []slotMove) bool {
	sum, g, n := 0, 0, 0
	last := &slotMove{}
	for i := range moves {
		if m := &moves[i]; m.now > 0 {
			sum, g, n, last = sum+m.now, gcd(g, m.now), n+1, m
		}
	}
	if g == 1 {
		return true
	}
	if n == 1 { // any number of slots would be one
		i := slices.IndexFunc(moves, func(m slotMove) bool { return m.now == 0 && m.to > 0 })
		if i < 0 || last.to < last.from {
			return false
		}
		moves[i].now, last.now = 1, last.now-1
		return true
	}
	for i, tries := 0, 0; i < len(moves) && tries < maxTerms; i++ {
		m := &moves[i]
		back, moved, others := cmp.Compare(m.from, m.now), m.now, 0
		if back == 0 {
			continue
		}
		tries++
		for j := range moves {
			if j != i {
				others = gcd(others, moves[j].now)
			}
		}
		for m.now+back != m.from && sum+m.now-moved < Max {
			if m.now += back; gcd(others, m.now) == 1 {
				return true
			}
		}
		m.now = moved
	}
	return false
}

func divideUp(a, b int) int { return (a + b - 1) / b }

// pairs returns the endpoints of two pools by address, a zero one where a pool does not have it.
func pairs(p, q *plan.Pool) iter.Seq2[*plan.Endpoint, *plan.Endpoint] {
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
