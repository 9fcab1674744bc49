package locality

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

// cluster returns a random cluster of up to 6 zones.
func cluster(rnd *rand.Rand, least int) (map[string]int, []int) {
	nodes, counts := map[string]int{}, []int{}
	for i := range 1 + rnd.IntN(6) {
		nodes[string(rune('a'+i))] = 1 + rnd.IntN(20)
		counts = append(counts, least+rnd.IntN(15))
	}
	if slices.Max(counts) == 0 {
		counts[0] = 1
	}
	return nodes, counts
}

// load returns the load of each endpoint if the nodes of all zones follow their decisions and each node sends 1.
func load(t *testing.T, settings string, nodes map[string]int, counts []int) []float64 {
	t.Helper()
	var sum []float64
	for zone, n := range nodes {
		req := sdktest.NewRequest(zone, nodes, perZone(counts...)...)
		parts, err := sdktest.Parts(req, sdktest.Native(t, New, settings))
		if err != nil {
			t.Fatal(err)
		}
		if sum == nil {
			sum = make([]float64, len(parts))
		}
		for i, part := range parts {
			sum[i] += float64(n) * part
		}
	}
	return sum
}

func TestLoadIsEvenOverAllNodes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 300 {
		nodes, counts := cluster(rnd, 0)
		endpoints, all := 0, 0
		for _, n := range counts {
			endpoints += n
		}
		for _, n := range nodes {
			all += n
		}
		got := load(t, exact, nodes, counts)
		for i := range got {
			if mean := float64(all) / float64(endpoints); math.Abs(got[i]/mean-1) > 1e-3 {
				t.Fatalf("round %d: nodes %v, endpoints %v: endpoint %d gets %.3f, the mean is %.3f", round, nodes, counts, i, got[i], mean)
			}
		}
	}
}

func floats(counts []int) (f []float64) {
	for _, n := range counts {
		f = append(f, float64(n))
	}
	return f
}

// shareOf is a second implementation of the rule, in floating point.
func shareOf(from string, nodes map[string]int, counts []float64, zone int) float64 {
	demand, capacity := 0.0, 0.0
	for _, n := range nodes {
		demand += float64(n)
	}
	for _, n := range counts {
		capacity += n
	}
	e := func(z int) float64 { return counts[z] / capacity }
	d := func(z int) float64 { return float64(nodes[string(rune('a'+z))]) / demand }
	mine := int(from[0] - 'a')
	local := min(1, e(mine)/d(mine))
	if zone == mine {
		return local
	}
	spare := 0.0
	for z := range counts {
		spare += max(0, e(z)-d(z))
	}
	if local >= 1 || spare < 1e-9 {
		return 0
	}
	return (1 - local) * max(0, e(zone)-d(zone)) / spare
}

// checkShares compares the shares of zones with those of the rule, for numbers of endpoints by zone.
func checkShares(t *testing.T, settings string, req *abi.Request, nodes map[string]int, counts []int) {
	t.Helper()
	got := byZone(t, req, settings)
	for z := range counts {
		want, zone := 100*shareOf("a", nodes, floats(counts), z), string(rune('a'+z))
		if math.Abs(got[zone]-want) > .01 {
			t.Fatalf("%s, nodes %v, endpoints %v: zone %s gets %.2f %%, want %.2f %%", settings, nodes, counts, zone, got[zone], want)
		}
	}
}

func TestSharesFollowTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		nodes, counts := cluster(rnd, 0)
		req := sdktest.NewRequest("a", nodes, perZone(counts...)...)
		checkShares(t, exact, req, nodes, counts)
	}
}

// The demand of zones by Nodes and the same numbers in the settings give the same shares.
func TestConfiguredDemandFollowsTheSameRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(15, 16))
	for range 300 {
		nodes, counts := cluster(rnd, 0)
		text := ""
		for _, z := range slices.Sorted(maps.Keys(nodes)) {
			text += fmt.Sprintf(",%q:%d", z, nodes[z])
		}
		settings := `{"demandByZone":{` + text[1:] + `},` + exact[1:]
		req := sdktest.NewRequest("a", nil, perZone(counts...)...)
		if counts[0] == 0 { // as a host does: this node's zone has a row
			req.Zones = slices.Insert(req.Zones, 0, abi.Zone{Name: "a"})
		}
		checkShares(t, settings, req, nodes, counts)
	}
}
