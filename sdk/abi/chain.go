//go:build !wasip1

package abi

import (
	"fmt"
	"math"
	"slices"
)

// What a chain of plugins decides is two numbers for each endpoint and one for each group, as in Envoy the health of a host and
// its load-balancing weight. Capacity is how much of an endpoint there is: plugins that exclude and reduce write it. Share is
// what each unit of capacity gets: plugins that distribute read capacity and write share. Nobody rounds, and nobody multiplies
// one by the other, before Weights does at the end of the chain.

var roleNames = [...]string{
	RoleExclude: "exclude", RoleReduce: "reduce", RoleShare: "share", RoleLocality: "locality", RolePick: "pick", RoleReset: "reset", RoleAdjust: "adjust",
}

// Valid reports whether r is a role.
func (r Role) Valid() bool { return r >= RoleExclude && r <= RoleAdjust }

// RoleNames returns the names of the roles, in the order of a chain but for RoleAdjust.
func RoleNames() []string { return slices.Clone(roleNames[RoleExclude:]) }

// ParseRole returns the role of a name.
func ParseRole(name string) (r Role, ok bool) {
	i := slices.Index(roleNames[:], name)
	return Role(max(i, 0)), i > 0
}

func (r Role) String() string {
	if !r.Valid() {
		return fmt.Sprintf("role %d", uint8(r))
	}
	return roleNames[r]
}

// Begin sets the capacity and share of endpoints for the first plugin of a chain, so that Parts are those of the default rules:
// an endpoint that is ready or held, or chosen because none is, has capacity, and one whose topology hints are not for this node
// has no share.
func (r *Request) Begin() {
	const kind = HintedZone | HintedNode
	hints, chosen := false, [kind + 1]bool{}
	for i := range r.Endpoints {
		c := r.Endpoints[i].Conditions
		hints = hints || c&(Ready|Held) != 0 && c&Chosen == 0
		chosen[c&kind] = chosen[c&kind] || c&Chosen != 0
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		c := e.Conditions
		e.Capacity, e.Share, e.Group = 0, One, 0
		if c&(Ready|Held|Chosen) != 0 {
			e.Capacity = One
		}
		if hints && c&Chosen == 0 && (c&(Ready|Held) != 0 || !chosen[c&kind]) {
			e.Share = 0
		}
	}
}

// Answer is what the next plugin of a chain sees of an answer.
type Answer struct {
	Values []uint32 // Result.Value
	Group  []uint16 // Result.Group; nil: all 0
	Groups []uint32 // Response.Groups
}

// AnswerOf returns what the next plugin of a chain sees of a response, with which it shares no memory.
func AnswerOf(resp *Response) Answer {
	a := Answer{Values: make([]uint32, len(resp.Results)), Groups: slices.Clone(resp.Groups)}
	if len(a.Groups) > 0 {
		a.Group = make([]uint16, len(resp.Results))
	}
	for i := range resp.Results {
		if a.Values[i] = resp.Results[i].Value; a.Group != nil {
			a.Group[i] = resp.Results[i].Group
		}
	}
	return a
}

// PartOf returns the part of all connections that the group of endpoint i gets if every group has capacity, 0 to 1; nil without
// groups.
func (a Answer) PartOf(i int) *float64 {
	if len(a.Groups) == 0 {
		return nil
	}
	sum := 0.0
	for _, part := range a.Groups {
		sum += float64(part)
	}
	part, group := 0.0, 0
	if a.Group != nil {
		group = int(a.Group[i])
	}
	if sum > 0 {
		part = float64(a.Groups[group]) / sum
	}
	return &part
}

// Apply makes the answer of a plugin to the request the input of the next plugin. An endpoint that is not eligible has no
// capacity.
func (r *Request) Apply(role Role, a Answer) {
	switch {
	case role.WritesCapacity():
		for i, v := range a.Values {
			if r.Endpoints[i].Conditions&Eligible == 0 {
				v = 0
			}
			r.Endpoints[i].Capacity = v
		}
		return
	case role == RoleReset:
		return
	case role == RoleShare && len(a.Groups) > 0:
		r.Groups = a.Groups
		for i := range r.Endpoints {
			if r.Endpoints[i].Group = 0; a.Group != nil {
				r.Endpoints[i].Group = a.Group[i]
			}
		}
	}
	for i, v := range a.Values {
		r.Endpoints[i].Share = v
	}
}

// load is what an endpoint gets within its group, relative to the others. The conversion keeps the product from being fused into
// a sum, which would differ between architectures.
func (e *Endpoint) load() float64 { return float64(float64(e.Capacity) * float64(e.Share)) }

// Parts appends to dst the part of the new connections that each endpoint gets, 0 to 1, or nil if none has capacity and a share.
// A group without any leaves its part to the others in proportion to theirs; if these have no part, to all by capacity and share.
func (r *Request) Parts(dst []float64) []float64 {
	n := max(1, len(r.Groups))
	var room [2 * MaxGroups]float64
	sum, part := room[:n], room[MaxGroups:][:n]
	for i := range r.Endpoints {
		sum[r.group(i)] += r.Endpoints[i].load()
	}
	total := 0.0
	for g := range part {
		if part[g] = 1; len(r.Groups) > 0 {
			part[g] = float64(r.Groups[g])
		}
		if sum[g] > 0 {
			total += part[g]
		}
	}
	if total == 0 {
		for g := range part {
			part[g] = sum[g]
			total += sum[g]
		}
		if total == 0 {
			return nil
		}
	}
	for g := range part {
		if sum[g] > 0 {
			part[g] /= total * sum[g] // by unit of load
		}
	}
	for i := range r.Endpoints {
		dst = append(dst, r.Endpoints[i].load()*part[r.group(i)])
	}
	return dst
}

func (r *Request) group(i int) int {
	if g := int(r.Endpoints[i].Group); g < len(r.Groups) {
		return g
	}
	return 0
}

// tolerance is the relative error of the part of equal endpoints together that Weights accepts in favour of a smaller sum.
const tolerance = 0.01

// maxSearched is up to how many different parts Weights looks for the smallest weights: more are not a few groups, and the search
// costs as much for each.
const maxSearched = 16

// Weights stores in dst, of the length of parts, the smallest integers with the ratios of the parts, whose sum is 1: to a
// hundredth if the sum of the integers can be at most MaxTotal, or else as exactly as that permits. A part above 0 has at least
// 1, even if the sum exceeds MaxTotal.
func Weights(dst []uint16, parts []float64) {
	type class struct {
		part   float64
		count  float64
		weight float64
	}
	var room [maxSearched]class
	classes, top := room[:0], 0.0
	for _, p := range parts {
		if p <= 0 {
			continue
		}
		top = max(top, p)
		if at := slices.IndexFunc(classes, func(c class) bool { return c.part == p }); at >= 0 {
			classes[at].count++
		} else if len(classes) == maxSearched {
			classes = nil
			break
		} else {
			classes = append(classes, class{part: p, count: 1})
		}
	}
	if len(classes) == 0 {
		apportion(dst, parts, MaxTotal)
		return
	}
	scale := func(n float64) (total float64) {
		for i := range classes {
			c := &classes[i]
			c.weight = max(1, math.Round(n*c.part/top))
			total += c.count * c.weight
		}
		return total
	}
	best, least := 1.0, math.Inf(1)
	for n := 1.0; n <= MaxTotal; n++ {
		total := scale(n)
		if n > 1 && total > MaxTotal {
			break
		}
		off := 0.0
		for i := range classes {
			c := &classes[i]
			off = max(off, math.Abs(c.weight/(total*c.part)-1))
		}
		if off < least {
			best, least = n, off
		}
		if off <= tolerance {
			break
		}
	}
	scale(best)
	for i, p := range parts {
		if dst[i] = 0; p > 0 {
			dst[i] = uint16(classes[slices.IndexFunc(classes, func(c class) bool { return c.part == p })].weight)
		}
	}
}

// apportion gives each part its rounded weight of a total, at least 1 if it is above 0.
func apportion(dst []uint16, parts []float64, total int) {
	count, sum := 0, 0.0
	for _, p := range parts {
		if p > 0 {
			count, sum = count+1, sum+p
		}
	}
	for i, p := range parts {
		if dst[i] = 0; p > 0 {
			dst[i] = uint16(max(1, math.Round(p/sum*float64(max(total, count)))))
		}
	}
}
