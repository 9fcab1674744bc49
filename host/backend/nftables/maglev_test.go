package nftables

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// backends returns n endpoints with weight 1.
func backends(n int) []plan.Endpoint {
	var list []plan.Endpoint
	for i := range n {
		list = append(list, plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080), Weight: 1})
	}
	return list
}

// withoutAny returns a list without k of its endpoints.
func withoutAny(list []plan.Endpoint, k int, r *rand.Rand) []plan.Endpoint {
	list = slices.Clone(list)
	for range k {
		i := r.IntN(len(list))
		list = slices.Delete(list, i, i+1)
	}
	return list
}

// hashTable returns the slots that a frontend with source hash gets for a pool, after other slots.
func hashTable(t *testing.T, before []netip.AddrPort, list []plan.Endpoint) []netip.AddrPort {
	t.Helper()
	f := &plan.Frontend{Key: plan.Key{Addr: list[0].Addr.Addr(), Port: 80, Protocol: model.TCP}, Balance: plan.SourceHash}
	h, err := Slots{}.encodePool(f, &plan.Pool{Verdict: plan.Forward, Endpoints: list}, inside, pack(before))
	if err != nil {
		t.Fatal(err)
	}
	return h.slots.unpack()
}

// ofWeights returns endpoints with their share of a table of 1<<class slots.
func ofWeights(list []plan.Endpoint, class int) (_ []plan.Endpoint, total int) {
	list, sum := slices.Clone(list), totalWeight(list)
	for i := range list {
		list[i].Weight *= uint16(1 << class / sum)
	}
	return list, totalWeight(list)
}

// refTable is a second implementation: it writes out every permutation, and lets the endpoint that is farthest behind its
// frequency take the next slot.
func refTable(list []plan.Endpoint, total, class int) []netip.AddrPort {
	size := uint64(1) << class
	orders, most := make([][]int, len(list)), 0.0
	for i, e := range list {
		sum := fnv.New64a()
		b := e.Addr.Addr().As16()
		sum.Write(b[:])
		h := sum.Sum64() ^ uint64(e.Addr.Port())*0x9E3779B97F4A7C15
		for _, factor := range []uint64{0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53} {
			h ^= h >> 33
			h *= factor
		}
		h ^= h >> 33
		offset, skip := h%(1<<32), h>>32|1
		for j := range size {
			if at := int((offset + j*skip) % size); at < total {
				orders[i] = append(orders[i], at)
			}
		}
		most = max(most, float64(e.Weight))
	}
	slots, left := make([]netip.AddrPort, total), total
	taken := make([]float64, len(list))
	for round := 1.0; left > 0; round++ {
		for i, e := range list {
			if taken[i]/float64(e.Weight) >= round/most {
				continue
			}
			for slots[orders[i][0]].IsValid() {
				orders[i] = orders[i][1:]
			}
			slots[orders[i][0]] = e.Addr
			taken[i]++
			left--
		}
	}
	return slots
}

func TestHashSlotsAgreeWithTheReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		list := randomEndpoints(r)
		if len(list) == 0 {
			continue
		}
		list, total := ofWeights(list, minHashClass)
		got := hashSlots(list, total, minHashClass)
		if want := refTable(list, total, minHashClass); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", list, got, want)
		}
		if counted := endpointsOf(got); !slices.Equal(counted, list) {
			t.Fatalf("endpoints %v, want %v", counted, list)
		}
	}
}

// Two nodes that have seen other endpoints and weights before have the same table.
func TestHashSlotsDoNotDependOnHistory(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var a, b []netip.AddrPort
	for step := range 300 {
		list := randomEndpoints(r)
		if len(list) == 0 {
			continue
		}
		a = hashTable(t, a, list)
		if step%3 > 0 {
			continue // the other node misses a change
		}
		if b = hashTable(t, b, list); !slices.Equal(a, b) {
			t.Fatalf("step %d: %v: two nodes have different tables", step, list)
		}
	}
}

// The largest pools: a table is full, and takes a bounded number of steps.
func TestHashSlotsOfLargePools(t *testing.T) {
	testenv.OnceForAllKernels(t)
	for _, n := range []int{1, 1 << minHashClass, 1<<minHashClass + 1, 5000} {
		slots := hashTable(t, nil, backends(n))
		if got := reduceWeights(endpointsOf(slots)); !slices.Equal(got, backends(n)) {
			t.Errorf("%d endpoints: %d are read back", n, len(got))
		}
	}
	heavy := backends(500)
	heavy[7].Weight = 500
	if got := reduceWeights(endpointsOf(hashTable(t, nil, heavy))); !slices.Equal(got, heavy) {
		t.Error("weights of 500 and 1 are read back as others")
	}
}

// paperTable is the algorithm of the paper as its pseudocode has it, with a prime number of slots and without weights.
func paperTable(list []plan.Endpoint, size uint64) []netip.AddrPort {
	type order struct{ offset, skip, next uint64 }
	orders := make([]order, len(list))
	for i, e := range list {
		h1, h2 := fnv.New64a(), fnv.New64()
		fmt.Fprint(h1, e.Addr)
		fmt.Fprint(h2, e.Addr)
		orders[i] = order{offset: h1.Sum64() % size, skip: h2.Sum64()%(size-1) + 1}
	}
	slots, n := make([]netip.AddrPort, size), uint64(0)
	for {
		for i, e := range list {
			o := &orders[i]
			c := (o.offset + o.next*o.skip) % size
			for slots[c].IsValid() {
				o.next++
				c = (o.offset + o.next*o.skip) % size
			}
			slots[c] = e.Addr
			o.next++
			if n++; n == size {
				return slots
			}
		}
	}
}

func changed(a, b []netip.AddrPort) (n int) {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			n++
		}
	}
	return n
}

// The experiment of the paper's section 5.3 (figure 12): 1000 endpoints, 65537 slots, of which k percent leave at once. The
// figure has no numbers, so its algorithm runs beside ours. The paper repeats it 200 times.
func TestAsFewSlotsMoveAsInThePaper(t *testing.T) {
	testenv.OnceForAllKernels(t)
	const class, size = 16, 65537
	all, rounds := backends(1000), 3
	percents := []int{1, 10, 50}
	if testing.Short() {
		rounds, percents = 1, []int{10}
	}
	list, total := ofWeights(all, class)
	ours, paper := hashSlots(list, total, class), paperTable(all, size)
	r := rand.New(rand.NewPCG(5, 6))
	for _, k := range percents {
		var a, b float64
		for range rounds {
			left := withoutAny(all, k, r)
			list, total := ofWeights(left, class)
			a += 100 * float64(changed(ours, hashSlots(list, total, class))) / (1 << class) / float64(rounds)
			b += 100 * float64(changed(paper, paperTable(left, size))) / size / float64(rounds)
		}
		t.Logf("%.1f %% of 1000 endpoints leave: %.2f %% of the slots change, in the paper's algorithm %.2f %%", float64(k)/10, a, b)
		if a > b+1 {
			t.Errorf("%.2f %% of the slots change, in the paper's algorithm %.2f %%", a, b)
		}
	}
}

// client returns the endpoint that a client meets whose hashes are those of a generator.
func client(slots []netip.AddrPort, seed uint64, class int) netip.AddrPort {
	r := rand.New(rand.NewPCG(seed, 1))
	for range drawsOf(class) {
		if s := r.IntN(1 << class); s < len(slots) {
			return slots[s]
		}
	}
	return slots[r.IntN(1<<(class-1))]
}

// The figures in the README of the plugin maglev: clients that move when one endpoint leaves, in percent, and slots that change.
func TestClientsMoveAsInTheREADME(t *testing.T) {
	testenv.OnceForAllKernels(t)
	for n, want := range map[int]float64{3: 34.1, 10: 12.5, 30: 9.3, 100: 7.7} {
		all := backends(n)
		before, moved, written, rounds := hashTable(t, nil, all), 0, 0, min(n, 10)
		const clients = 1000
		for i := range rounds {
			at := i * n / rounds
			after := hashTable(t, before, slices.Delete(slices.Clone(all), at, at+1))
			written += changed(before, after)
			for c := range uint64(clients) {
				if client(before, c, minHashClass) != client(after, c, minHashClass) {
					moved++
				}
			}
		}
		got := 100 * float64(moved) / float64(rounds*clients)
		if t.Logf("%d endpoints: %.1f %% of the clients, %d slots", n, got, written/rounds); math.Abs(got-want) > 0.1 {
			t.Errorf("%d endpoints: %.1f %% of the clients move, want %v", n, got, want)
		}
	}
}

func BenchmarkHashSlots(b *testing.B) {
	for _, n := range []int{3, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list, total := ofWeights(backends(n), minHashClass)
			for range b.N {
				hashSlots(list, total, minHashClass)
			}
		})
	}
}
