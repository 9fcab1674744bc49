package slots

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// transition leads from a pool towards another one on which no step changes many slots. A data plane gives all of its Max slots
// to the endpoints with weight if there are few of them, by their weights, and one to each if there are many: where few become
// many or many few, nearly every slot would change at once. So few first lose the differences of their weights, many become few
// without them, and these get them last.
type transition struct {
	from, to *plan.Pool
	bySlots  bool // all weights change a little, see interpolate; otherwise each endpoint has its old or its new weight
	equal    bool // no weight above 1 counts
	last     bool // it leads to the wanted pool
}

// transitionTo returns the transition to make next from one pool to another one.
func transitionTo(from, to *plan.Pool) transition {
	differ, many := weightsOf(from)
	willDiffer, willBeMany := weightsOf(to)
	switch {
	case !differ && !willDiffer:
		return transition{from: from, to: to, last: true}
	case !many && !willBeMany:
		return transition{from: from, to: to, bySlots: true, last: true}
	case differ && !many:
		equal := plan.Pool{Verdict: from.Verdict, Endpoints: slices.Clone(from.Endpoints)}
		for i := range equal.Endpoints {
			equal.Endpoints[i].Weight = min(1, equal.Endpoints[i].Weight)
		}
		return transition{from: from, to: &equal, bySlots: true}
	default:
		return transition{from: from, to: to, equal: true, last: willBeMany || !willDiffer}
	}
}

// weightsOf reports whether a weight is above 1, and whether so many endpoints have weight that all have one slot.
func weightsOf(p *plan.Pool) (differ, many bool) {
	n := 0
	for i := range p.Endpoints {
		if w := p.Endpoints[i].Weight; w > 0 {
			n++
			differ = differ || w > 1
		}
	}
	return differ, n >= Max
}

// endpoints returns the number of endpoints to compare.
func (w *transition) endpoints() int { return max(len(w.from.Endpoints), len(w.to.Endpoints)) }

// cost returns what a change costs.
func (w *transition) cost() int {
	if w.bySlots {
		return element
	}
	return 2 * element // the slot of another endpoint, or one with its hairpin
}

// left returns the number of changes to the end.
func (w *transition) left() int {
	if w.bySlots {
		return slotChanges(w.from, w.to)
	}
	n := 0
	for a, b := range pairs(w.from, w.to) {
		if w.weight(a) != w.weight(b) || a.Addr != b.Addr {
			n++
		}
	}
	return n
}

// weight returns the weight of an endpoint that counts.
func (w *transition) weight(e *plan.Endpoint) uint16 {
	if w.equal {
		return min(1, e.Weight)
	}
	return e.Weight
}

// after returns the pool after n changes.
func (w *transition) after(n int) plan.Pool {
	if w.bySlots {
		return interpolate(w.from, w.to, n)
	}
	from, to := w.from.Endpoints, w.to.Endpoints
	out := plan.Pool{Verdict: w.to.Verdict}
	switch old := len(from); {
	case w.equal:
	case old+n <= len(to) && slices.Equal(from, to[:old]): // a part of it: no copy for each step
		out.Endpoints = to[: old+n : old+n]
	case len(to) == 0 && n < old:
		out.Endpoints = from[n:]
	}
	if out.Total() == 0 && w.to.Total() > 0 || out.Endpoints == nil {
		out.Endpoints = w.merge(n)
	}
	if out.Total() > 0 {
		out.Verdict = plan.Forward
	}
	return out
}

// merge returns the endpoints of the first pool, up to n of them as they are in the other one: half of them with a higher weight,
// if there are as many, so that some have weight if any in the other pool has.
func (w *transition) merge(n int) []plan.Endpoint {
	grow, others := 0, 0
	for o, e := range pairs(w.from, w.to) {
		switch had, has := w.weight(o), w.weight(e); {
		case has > had:
			grow++
		case has < had || e.Addr != o.Addr:
			others++
		}
	}
	grow = min(grow, max(n/2, n-others))
	others = min(others, n-grow)
	out := make([]plan.Endpoint, 0, len(w.from.Endpoints)+grow+others)
	for o, e := range pairs(w.from, w.to) {
		switch had, has := w.weight(o), w.weight(e); {
		case has > had && grow > 0:
			grow--
			o = e
		case e.Addr == o.Addr && has == had:
			o = e // phase and deadline do not affect forwarding
		case has <= had && others > 0:
			others--
			o = e
		}
		if o.Addr.IsValid() {
			out = append(out, *o)
			out[len(out)-1].Weight = w.weight(o)
		}
	}
	return out
}
