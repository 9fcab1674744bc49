package weights

import (
	"math"
	"math/rand/v2"
	"testing"
)

// closest is a second implementation of ChooseMultipliers: it tries all multipliers up to most for up to three groups, and returns
// the least deviation from the shares.
func closest(g Groups, most uint64, maxTotal uint64) float64 {
	best := math.Inf(1)
	factors := make([]uint64, len(g))
	var try func(at int)
	try = func(at int) {
		if at < len(g) {
			for n := uint64(0); n <= most; n++ {
				if factors[at] = n; n == 0 || g[at].Capacity > 0 && g[at].Share > 0 {
					try(at + 1)
				}
			}
			return
		}
		total := uint64(0)
		for i := range g {
			total += factors[i] * g[i].Capacity
		}
		if total == 0 || total > maxTotal {
			return
		}
		off := 0.0
		for i := range g {
			off = max(off, math.Abs(float64(factors[i]*g[i].Capacity)/float64(total)-float64(g[i].Share)/Million))
		}
		best = min(best, off)
	}
	try(0)
	return best
}

func random(rnd *rand.Rand) Groups {
	g := make(Groups, 2+rnd.IntN(2))
	left := uint64(Million)
	for i := range g {
		g[i].Capacity = uint64(1 + rnd.IntN(12))
		if g[i].Share = left; i < len(g)-1 {
			g[i].Share = rnd.Uint64N(left + 1)
		}
		left -= g[i].Share
	}
	return g
}

func TestMultipliersGiveSharesWithinTheSlackIfThatIsPossible(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 400 {
		g := random(rnd)
		const slack, most, maxTotal = 20_000, 25, 300
		for i := range g {
			g[i].Slack = slack
		}
		g.ChooseMultipliers(Limits{MaxTotal: maxTotal, Largest: 1})
		total := g.Total()
		if total == 0 || total > maxTotal {
			t.Fatalf("round %d: %+v: total %d", round, g, total)
		}
		got := float64(g.MaxError(total)) / Million
		if want := closest(g, most, maxTotal); got > slack/1e6 && want < slack/1e6/2 {
			t.Fatalf("round %d: %+v: off by %.4f, possible is %.4f", round, g, got, want)
		}
	}
}

func TestMultipliersAreTheSmallestOfTheirRatio(t *testing.T) {
	g := Groups{{Capacity: 4, Share: 500_000}, {Capacity: 4, Share: 500_000}, {}, {Capacity: 3}}
	g.ChooseMultipliers(Limits{MaxTotal: 1000, Largest: 1})
	for i, want := range []uint64{1, 1, 0, 0} {
		if g[i].Multiplier != want {
			t.Errorf("%+v", g)
		}
	}
	if g.Percent(0) != 50 || g.Percent(2) != 0 {
		t.Errorf("%d %%, %d %%", g.Percent(0), g.Percent(2))
	}
}

func TestSmallShareIsNotRoundedToNone(t *testing.T) {
	g := Groups{{Capacity: 1, Share: 990_000}, {Capacity: 500, Share: 10_000}}
	g.ChooseMultipliers(Limits{MaxTotal: 1000, Largest: 1, Least: 1})
	if g[1].Multiplier == 0 {
		t.Errorf("%+v", g)
	}
}

func TestMultipliersRespectTheLargestWeight(t *testing.T) {
	g := Groups{{Capacity: 30_000, Share: 666_667}, {Capacity: 30_000, Share: 333_333}}
	g.ChooseMultipliers(Limits{MaxTotal: 1 << 40, Largest: 30_000})
	if g[0].Multiplier != 2 || g[1].Multiplier != 1 {
		t.Errorf("%+v", g)
	}
	g[0].Capacity, g[1].Capacity = 40_000, 40_000
	g.ChooseMultipliers(Limits{MaxTotal: 1 << 40, Largest: 40_000})
	if g[0].Multiplier != 1 || g[1].Multiplier > 1 {
		t.Errorf("%+v", g)
	}
}
