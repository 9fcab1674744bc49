package subset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/sdktest"
)

func run(t *testing.T, k int, req *abi.Request) *abi.Response {
	t.Helper()
	return sdktest.MustRun(t, New(), fmt.Sprintf(`{"endpoints":%d}`, k), req)
}

// endpoints returns n ready endpoints, of which the numbers of left have left.
func endpoints(n int, left ...int) []abi.Endpoint {
	var eps []abi.Endpoint
	for i := range n {
		if !slices.Contains(left, i) {
			e := sdktest.Ready("a")
			e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
			eps = append(eps, e)
		}
	}
	return eps
}

type set map[netip.AddrPort]bool

// minus returns how many endpoints of a are not in b.
func (a set) minus(b set) (n int) {
	for e := range a {
		if !b[e] {
			n++
		}
	}
	return n
}

// subsets returns the subset of each node, by its index.
func subsets(t *testing.T, k, nodes int, eps []abi.Endpoint) []set {
	t.Helper()
	req := sdktest.NewRequest("a", map[string]int{"a": nodes}, eps...)
	p := sdktest.Native(t, New, fmt.Sprintf(`{"endpoints":%d}`, k))
	var all []set
	for i := range nodes {
		req.NodeIndex = uint32(i)
		resp := sdktest.MustRunChain(t, req, p)
		in := set{}
		for j, a := range resp[0].Results {
			if a.Value > 0 {
				in[req.Endpoints[j].Addr] = true
			}
		}
		all = append(all, in)
	}
	return all
}

func counts(all []set, eps []abi.Endpoint) []int {
	var out []int
	for _, e := range eps {
		n := 0
		for _, in := range all {
			if in[e.Addr] {
				n++
			}
		}
		out = append(out, n)
	}
	return out
}

// dims returns random numbers of nodes, endpoints and of the subset.
func dims(rnd *rand.Rand) (m, n, k int) { return 1 + rnd.IntN(40), 2 + rnd.IntN(60), 1 + rnd.IntN(30) }

func TestEveryEndpointIsInAsManySubsets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		m, n, k := dims(rnd)
		eps := endpoints(n)
		all := subsets(t, k, m, eps)
		want := min(n, max(k, int(math.Ceil(float64(n)/float64(m)))))
		for i, in := range all {
			if len(in) != want {
				t.Fatalf("round %d: %d of %d endpoints, %d nodes: node %d has %d, want %d", round, k, n, m, i, len(in), want)
			}
		}
		mean := float64(m*want) / float64(n)
		for i, c := range counts(all, eps) {
			if math.Abs(float64(c)-mean) >= 1 || c == 0 {
				t.Fatalf("round %d: %d of %d endpoints, %d nodes: endpoint %d is in %d subsets, the mean is %.2f", round, k, n, m, i, c, mean)
			}
		}
	}
}

// ring is a second implementation, in floating point: each node walks the ring from its place.
func ring(k, m, index int, eps []abi.Endpoint) set {
	order := slices.Clone(eps)
	hash := func(e abi.Endpoint) uint32 { // SplitMix64's finalizer of both halves of the address
		b := e.Addr.Addr().As16()
		var half [2]uint64
		for i, x := range b {
			half[i/8] += uint64(x) << (i % 8 * 8)
		}
		h := (half[0] ^ uint64(e.Addr.Port())<<48) * 11400714819323198485
		h ^= h >> 32
		h ^= half[1]
		h ^= h >> 30
		h *= 13787848793156543929
		h ^= h >> 27
		h *= 10723151780598845931
		return uint32(h>>32 ^ h>>63)
	}
	slices.SortStableFunc(order, func(a, b abi.Endpoint) int { return int(int64(hash(a)) - int64(hash(b))) })
	in := set{}
	at := int(math.Floor(float64(index)*float64(len(order))/float64(m) + 1e-9))
	for steps := 0; len(in) < k || float64(len(in)) < float64(len(order))/float64(m); steps++ {
		if steps == len(order) {
			break
		}
		in[order[(at+steps)%len(order)].Addr] = true
	}
	return in
}

func TestSubsetsAgreeWithTheReference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m, n, k := dims(rnd)
		eps := endpoints(n)
		for i, in := range subsets(t, k, m, eps) {
			if want := ring(k, m, i, eps); in.minus(want) > 0 || want.minus(in) > 0 {
				t.Fatalf("%d of %d endpoints, node %d of %d: %v, want %v", k, n, i, m, in, want)
			}
		}
	}
}

// When an endpoint comes or goes, no subset loses or gains more than one beside it and its replacement.
func TestChangeOfAnEndpointMovesAtMostOneMoreOfEachSubset(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		m, n, k := dims(rnd)
		if k*m < n { // subsets grow with the endpoints
			continue
		}
		gone := rnd.IntN(n)
		with, without := subsets(t, k, m, endpoints(n)), subsets(t, k, m, endpoints(n, gone))
		for i := range with {
			most := 1
			if with[i][endpoints(n)[gone].Addr] {
				most = 2
			}
			if joined, left := without[i].minus(with[i]), with[i].minus(without[i]); joined > most || left > most {
				t.Fatalf("%d of %d endpoints, node %d of %d: %d joined, %d left", k, n, i, m, joined, left)
			}
		}
	}
}

// A node that goes, wherever it is in the order of names, moves at most as many endpoints of other nodes in all as there are.
func TestNodeThatGoesMovesFewEndpoints(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 100 {
		m, n, k := dims(rnd)
		if m == 1 || k*(m-1) < n {
			continue
		}
		with, without := subsets(t, k, m, endpoints(n)), subsets(t, k, m-1, endpoints(n))
		gone, moved := rnd.IntN(m), 0
		for i := range without {
			before := with[i]
			if i >= gone {
				before = with[i+1] // the index of later nodes is one less
			}
			d := without[i].minus(before)
			if moved += d; d > (n+m-2)/(m-1) {
				t.Fatalf("%d of %d endpoints, node %d of %d goes: %d moved on one node", k, n, gone, m, d)
			}
		}
		if moved > n {
			t.Fatalf("%d of %d endpoints, node %d of %d goes: %d moved", k, n, gone, m, moved)
		}
	}
}

// The figures in the README: the mean share of all memberships of subsets that move to another endpoint, in percent.
func TestMovesAreThoseInTheREADME(t *testing.T) {
	for _, tt := range []struct {
		m, n, k        int
		node, endpoint float64 // when one goes
	}{
		{10, 50, 20, 8.3, 2.7}, {100, 50, 20, 1.3, 2.7}, {100, 200, 20, 4.0, 2.5}, {1000, 200, 20, 0.5, 1.7},
	} {
		if testing.Short() && tt.m == 1000 {
			continue
		}
		with, fewer := subsets(t, tt.k, tt.m, endpoints(tt.n)), subsets(t, tt.k, tt.m-1, endpoints(tt.n))
		var node, endpoint, rounds int
		for gone := 0; gone < tt.m; gone += tt.m / 10 {
			for i := range fewer {
				before := with[i]
				if i >= gone {
					before = with[i+1]
				}
				node += fewer[i].minus(before)
			}
			without := subsets(t, tt.k, tt.m, endpoints(tt.n, gone%tt.n))
			for i := range without {
				endpoint += without[i].minus(with[i])
			}
			rounds++
		}
		share := func(moved int) float64 { return math.Round(1000*float64(moved)/float64(rounds*tt.m*tt.k)) / 10 }
		if share(node) != tt.node || share(endpoint) != tt.endpoint {
			t.Errorf("%d of %d endpoints, %d nodes: a node goes: %v %%, an endpoint goes: %v %%", tt.k, tt.n, tt.m, share(node), share(endpoint))
		}
	}
}

func TestReasonsSayTheSubset(t *testing.T) {
	req := sdktest.NewRequest("a", map[string]int{"a": 4}, endpoints(8)...)
	req.NodeIndex = 2
	resp := run(t, 3, req)
	got := map[string]int{}
	for _, a := range resp.Results {
		got[fmt.Sprint(a.Value/abi.One, " ", a.Reason)]++
	}
	if got["1 3 of 8 endpoints, node 3 of 4"] != 3 || got["0 not in the subset of this node"] != 5 || resp.RequeueAfter != 0 {
		t.Errorf("%v, again after %v", got, resp.RequeueAfter)
	}
	for _, tt := range []struct {
		k      int
		edit   func(*abi.Request)
		reason string
	}{
		{8, func(*abi.Request) {}, "all 8 endpoints"},
		{1000, func(*abi.Request) {}, "all 8 endpoints"},
		{3, func(r *abi.Request) { r.NodeIndex = abi.NoIndex }, "all endpoints: the position of the node is unknown"},
		{3, func(r *abi.Request) { r.NodeCount = 0 }, "all endpoints: the position of the node is unknown"},
		{3, func(r *abi.Request) { r.Pool = abi.PoolLocal }, ""},
		{3, func(r *abi.Request) { r.NodeIndex, r.NodeCount = 0, 1 }, "all 8 endpoints"},
	} {
		req := sdktest.NewRequest("a", map[string]int{"a": 4}, endpoints(8)...)
		tt.edit(req)
		for _, a := range run(t, tt.k, req).Results {
			if a.Value != abi.One || a.Reason != tt.reason {
				t.Errorf("%d %q, want One and %q", a.Value, a.Reason, tt.reason)
			}
		}
	}
}

// An endpoint that is not ready, or that a previous plugin has excluded, counts as gone: the next one takes its place. Others
// keep their shares.
func TestOnlyEndpointsThatGetConnectionsCount(t *testing.T) {
	req := sdktest.NewRequest("a", map[string]int{"a": 10}, endpoints(40)...)
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		if e.Capacity = uint32(1+i%3) * 100_000; i%5 == 0 {
			e.Capacity = 0
		}
	}
	kept := 0
	for i, a := range run(t, 7, req).Results {
		if req.Endpoints[i].Capacity > 0 && a.Value > 0 {
			if kept++; a.Value != abi.One {
				t.Errorf("share %d", a.Value)
			}
		}
	}
	if kept != 7 {
		t.Errorf("%d endpoints, want 7", kept)
	}
}

// The place of a node that is not ready may be after all others.
func TestNodeThatIsNotReadyHasASubset(t *testing.T) {
	req := sdktest.NewRequest("a", map[string]int{"a": 4}, endpoints(8)...)
	req.NodeIndex = 4
	sum := 0.0
	for _, w := range sdktest.Answers(run(t, 3, req)) {
		sum += w
	}
	if sum != 3 {
		t.Errorf("%v endpoints, want 3", sum)
	}
}

// The parts of groups and zones stay what they are, and each has some of the endpoints of the subset.
func TestZonesAndGroupsKeepTheirParts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	chain := []*sdk.NativePlugin{
		sdktest.Native(t, canary.New, `{"groups":[{"value":"canary","percent":5}]}`), sdktest.Native(t, locality.New, `{"minEndpointsPerZone":1}`),
	}
	for round := range 300 {
		eps := endpoints(20 + rnd.IntN(80))
		for i := range eps {
			eps[i].Zone = string(rune('a' + rnd.IntN(2) + rnd.IntN(2)))
			eps[i].Values = sdktest.Values([]string{"canary", "stable", "stable", "stable"}[rnd.IntN(4)])
		}
		req := sdktest.NewRequest("a", map[string]int{"a": 5, "b": 5, "c": 5}, eps...)
		req.NodeIndex, req.Keys = uint32(rnd.IntN(15)), []string{sdk.PodLabel("track")}
		before, err := sdktest.Parts(req, chain...)
		if err != nil {
			t.Fatal(err)
		}
		after, err := sdktest.Parts(req, append(chain, sdktest.Native(t, New, `{"endpoints":12}`))...)
		if err != nil {
			t.Fatal(err)
		}
		sums, used := map[string]float64{}, 0
		first, zoned := map[string]float64{}, map[string]bool{} // by group: zones get different shares
		for i, e := range req.Endpoints {
			group := e.Values[0].Text
			if part, ok := first[group]; ok {
				zoned[group] = zoned[group] || math.Abs(part-before[i]) > 1e-9
			}
			first[group] = before[i]
		}
		for i, e := range req.Endpoints {
			group := e.Values[0].Text
			if sums[group] += after[i] - before[i]; zoned[group] {
				sums[e.Zone+group] += after[i] - before[i]
			}
			if after[i] > 0 {
				used++
			}
		}
		for class, off := range sums {
			if math.Abs(off) > 1e-4 {
				t.Fatalf("round %d: %s gets %.5f more", round, class, off)
			}
		}
		if used > 24 {
			t.Fatalf("round %d: %d endpoints", round, used)
		}
	}
}

// A group without a part of the connections has a subset, for when it is the only one that is left.
func TestGroupWithoutAPartHasASubset(t *testing.T) {
	eps := endpoints(60)
	for i := range eps {
		eps[i].Values = sdktest.Values([]string{"canary", "stable"}[i%2])
	}
	req := sdktest.NewRequest("a", map[string]int{"a": 10}, eps...)
	req.Keys = []string{sdk.PodLabel("track")}
	all := sdktest.MustRunChain(t, req, sdktest.Native(t, canary.New, `{"groups":[{"value":"canary","percent":0}]}`), sdktest.Native(t, New, `{"endpoints":12}`))
	used := [2]int{}
	for i, w := range sdktest.Answers(all[1]) {
		if w > 0 {
			used[i%2]++
		}
		if w > 1 {
			t.Errorf("share %v", w)
		}
	}
	if used != [2]int{3, 12} { // canaries: as many as are needed so that every one is in a subset
		t.Errorf("%v endpoints", used)
	}
}

func TestBadSettingsAreRefusedByField(t *testing.T) {
	sdktest.CheckRefused(t, New, map[string]string{
		`{"endpoints":0}`:    "endpoints: 0 is not 1 to 1000",
		`{"endpoints":1001}`: "endpoints: 1001 is not 1 to 1000",
		`{"endpoints":"3"}`:  "endpoints: want an integer, got a string",
		`{"k":3}`:            `unknown field "k"`,
	})
}

func FuzzPositionAndShares(f *testing.F) {
	f.Add(uint16(3), uint32(0), uint32(1), []byte{1, 0, 2})
	f.Add(uint16(1), uint32(7), uint32(3), []byte{1, 1, 1, 1, 1, 1})
	f.Add(uint16(1000), uint32(math.MaxUint32-1), uint32(math.MaxUint32), []byte{255})
	f.Fuzz(func(t *testing.T, k uint16, index, nodes uint32, list []byte) {
		if k == 0 || k > 1000 || len(list) > 300 {
			return
		}
		req, had := sdktest.NewRequest("a", nil, endpoints(len(list))...), 0
		for i, w := range list {
			req.Endpoints[i].Share = uint32(w)
			had += int(min(w, 1))
		}
		req.NodeIndex, req.NodeCount, req.State = index, nodes, list
		kept := 0
		for i, r := range run(t, int(k), req).Results {
			if r.Value != 0 && r.Value != uint32(list[i]) {
				t.Fatalf("share %d became %d", list[i], r.Value)
			}
			kept += int(min(r.Value, 1))
		}
		if kept < min(had, int(k)) {
			t.Errorf("%d endpoints of %d, want %d", kept, had, k)
		}
	})
}
