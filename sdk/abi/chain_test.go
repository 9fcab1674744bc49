package abi

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// endpoint returns an eligible endpoint.
func endpoint(capacity, share float64, group uint16) Endpoint {
	return Endpoint{Conditions: Eligible, Capacity: uint32(capacity * One), Share: uint32(share * One), Group: group}
}

func TestPartsAreCapacityTimesShareWithinGroups(t *testing.T) {
	for name, tt := range map[string]struct {
		groups []uint32
		eps    []Endpoint
		want   []float64
	}{
		"equal":                      {nil, []Endpoint{endpoint(1, 1, 0), endpoint(1, 1, 0)}, []float64{.5, .5}},
		"one warms up":               {nil, []Endpoint{endpoint(1, 1, 0), endpoint(.25, 1, 0)}, []float64{.8, .2}},
		"shares are by capacity":     {nil, []Endpoint{endpoint(.5, 1, 0), endpoint(.5, 3, 0), endpoint(1, 0, 0)}, []float64{.25, .75, 0}},
		"groups have their parts":    {[]uint32{99, 1}, []Endpoint{endpoint(1, 1, 0), endpoint(1, 1, 0), endpoint(1, 7, 1)}, []float64{.495, .495, .01}},
		"whatever their capacity":    {[]uint32{1, 1}, []Endpoint{endpoint(.1, 1, 0), endpoint(1, 1, 1), endpoint(1, 1, 1)}, []float64{.5, .25, .25}},
		"a group is gone":            {[]uint32{50, 30, 20}, []Endpoint{endpoint(1, 1, 0), endpoint(0, 1, 1), endpoint(1, 1, 2)}, []float64{5. / 7, 0, 2. / 7}},
		"only groups without a part": {[]uint32{100, 0, 0}, []Endpoint{endpoint(0, 1, 0), endpoint(1, 1, 1), endpoint(1, 3, 2)}, []float64{0, .25, .75}},
		"none":                       {nil, []Endpoint{endpoint(0, 1, 0), endpoint(1, 0, 0)}, nil},
		"no endpoints":               {[]uint32{1}, nil, nil},
	} {
		r := &Request{Groups: tt.groups, Endpoints: tt.eps}
		got := r.Parts(nil)
		if len(got) != len(tt.want) || !slices.EqualFunc(got, tt.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-4 }) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// Without a plugin, parts are what the default rules choose.
func TestBeginIsTheDefaultRules(t *testing.T) {
	const ready, ending = Ready | Serving | Eligible, Serving | Terminating | Eligible
	for name, tt := range map[string]struct {
		conditions []uint32
		want       []uint16
	}{
		"ready":                       {[]uint32{ready | Chosen, ready | Chosen, ending, 0}, []uint16{1, 1, 0, 0}},
		"held":                        {[]uint32{ready | Chosen, Eligible | Held | Chosen}, []uint16{1, 1}},
		"none is ready":               {[]uint32{ending | Chosen, 0}, []uint16{1, 0}},
		"hinted to this node's zone":  {[]uint32{ready | Chosen | HintedZone, ready, ending | HintedZone, ending}, []uint16{1, 0, 0, 0}},
		"all hinted to another place": {[]uint32{ready, ready}, nil},
	} {
		r := &Request{}
		for _, c := range tt.conditions {
			r.Endpoints = append(r.Endpoints, Endpoint{Conditions: c})
		}
		r.Begin()
		parts := r.Parts(nil)
		if (parts == nil) != (tt.want == nil) {
			t.Fatalf("%s: %v", name, parts)
		}
		got := make([]uint16, len(parts))
		if Weights(got, parts); !slices.Equal(got, tt.want) {
			t.Errorf("%s: weights %v, want %v", name, got, tt.want)
		}
	}
	// A terminating endpoint that a plugin drains is one of this node if those like it are.
	r := &Request{Endpoints: []Endpoint{{Conditions: ready | Chosen | HintedZone}, {Conditions: ready}, {Conditions: ending | HintedZone}, {Conditions: ending}}}
	r.Begin()
	for i, want := range []uint32{One, 0, One, 0} {
		if got := r.Endpoints[i].Share; got != want {
			t.Errorf("endpoint %d has the share %d, want %d", i, got, want)
		}
	}
}

func TestRolesWriteTheirNumber(t *testing.T) {
	for role := RoleExclude; role.Valid(); role++ {
		r := &Request{Endpoints: []Endpoint{endpoint(1, 1, 0), {}}}
		r.Apply(role, Answer{Values: []uint32{7, 7}, Group: []uint16{1, 0}, Groups: []uint32{1, 2}})
		a, b := r.Endpoints[0], r.Endpoints[1]
		if capacity := role == RoleExclude || role == RoleReduce; (a.Capacity == 7) != capacity || (a.Share == 7) != (!capacity && role != RoleReset) {
			t.Errorf("%s: %+v", role, a)
		}
		if b.Capacity != 0 {
			t.Errorf("%s: an endpoint that is not eligible has the capacity %d", role, b.Capacity)
		}
		if (len(r.Groups) == 2) != (role == RoleShare) || (a.Group == 1) != (role == RoleShare) {
			t.Errorf("%s: groups %v, %d", role, r.Groups, a.Group)
		}
	}
}

func TestWeightsAreSmall(t *testing.T) {
	for _, tt := range []struct {
		parts []float64
		want  []uint16
	}{
		{[]float64{.25, .25, .25, .25}, []uint16{1, 1, 1, 1}},
		{[]float64{.5, .25, .25, 0}, []uint16{2, 1, 1, 0}},
		{[]float64{.99, .01}, []uint16{99, 1}},
		{[]float64{1. / 3, 2. / 3}, []uint16{1, 2}},
	} {
		got := make([]uint16, len(tt.parts))
		if Weights(got, tt.parts); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.parts, got, tt.want)
		}
	}
}

// The groups of equal parts get them to a hundredth, if a sum of 1000 can; no part is lost; and order is kept.
func TestWeightsKeepTheRatios(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 2000 {
		kinds := 1 + rnd.IntN(6)
		if round%10 == 0 {
			kinds = 1 + rnd.IntN(100)
		}
		var parts []float64
		sum := 0.0
		for range kinds {
			p := math.Exp(rnd.Float64() * 3)
			for range 1 + rnd.IntN(400/kinds) {
				parts = append(parts, p)
				sum += p
			}
		}
		for i := range parts {
			parts[i] /= sum
		}
		w := make([]uint16, len(parts))
		Weights(w, parts)
		total := 0
		for _, v := range w {
			total += int(v)
		}
		if total > MaxTotal+len(parts)/2 {
			t.Fatalf("round %d: the sum is %d", round, total)
		}
		for i := range parts {
			if w[i] == 0 {
				t.Fatalf("round %d: a part of %v has no weight", round, parts[i])
			}
			if i > 0 && (parts[i] < parts[i-1]) != (w[i] < w[i-1]) && w[i] != w[i-1] {
				t.Fatalf("round %d: parts %v, %v have weights %d, %d", round, parts[i-1], parts[i], w[i-1], w[i])
			}
			if off := math.Abs(float64(w[i])/float64(total) - parts[i]); off > max(.02*parts[i], 1.5/float64(total)) {
				t.Fatalf("round %d: a part of %v is %v (%d of %d)", round, parts[i], float64(w[i])/float64(total), w[i], total)
			}
		}
	}
}

func BenchmarkWeights(b *testing.B) {
	parts := make([]float64, 1000)
	for i := range parts {
		parts[i] = []float64{.99 / 999, .01}[btoi(i == 0)]
	}
	w := make([]uint16, len(parts))
	for b.Loop() {
		Weights(w, parts)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
