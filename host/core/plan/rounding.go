package plan

import (
	"cmp"
	"slices"
)

// ReduceWeights reduces weights to lowest terms with a sum of at most max(limit, endpoints with weight). It reports whether it
// had to round.
func ReduceWeights(endpoints []Endpoint, limit int) (rounded bool) {
	sum, g, n := sumGCD(endpoints)
	if n == 0 {
		return false
	}
	limit = max(limit, n)
	switch {
	case sum/g <= limit:
		toLowestTerms(endpoints)
		return false
	case n == limit: // at least one slot each, so no more
		for i := range endpoints {
			endpoints[i].Weight = min(1, endpoints[i].Weight)
		}
		return true
	}
	roundWeights(endpoints, limit)
	toLowestTerms(endpoints)
	return true
}

func toLowestTerms(endpoints []Endpoint) {
	_, g, _ := sumGCD(endpoints)
	if g <= 1 {
		return
	}
	for i := range endpoints {
		endpoints[i].Weight /= uint16(g)
	}
}

// sumGCD returns sum, greatest common divisor and number of the positive weights.
func sumGCD(endpoints []Endpoint) (sum, g, n int) {
	for _, m := range endpoints {
		if m.Weight > 0 {
			sum, g, n = sum+int(m.Weight), gcd(g, int(m.Weight)), n+1
		}
	}
	return sum, g, n
}

// roundWeights distributes limit slots by weight. Endpoints that would get less than one slot get one; the others share the rest
// by largest remainder, with ties resolved by address.
func roundWeights(endpoints []Endpoint, limit int) {
	type part struct {
		index     int
		weight    uint64
		remainder uint64
	}
	var parts []part
	var sum uint64
	for i, m := range endpoints {
		if m.Weight > 0 {
			parts = append(parts, part{index: i, weight: uint64(m.Weight)})
			sum += uint64(m.Weight)
		}
	}
	left := uint64(limit)
	for again := true; again; {
		again = false
		kept := parts[:0]
		restSum, restLeft := sum, left
		for _, p := range parts {
			if p.weight*left < sum {
				endpoints[p.index].Weight = 1
				restSum, restLeft, again = restSum-p.weight, restLeft-1, true
				continue
			}
			kept = append(kept, p)
		}
		parts, sum, left = kept, restSum, restLeft
	}
	given := uint64(0)
	for i := range parts {
		p := &parts[i]
		q := p.weight * left / sum
		p.remainder = p.weight * left % sum
		endpoints[p.index].Weight = uint16(q)
		given += q
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.remainder, a.remainder) })
	for _, p := range parts[:left-given] {
		endpoints[p.index].Weight++
	}
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
