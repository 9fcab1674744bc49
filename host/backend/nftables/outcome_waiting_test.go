package nftables

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

func countedKeyNumber(i int) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80), Protocol: model.TCP}
}

func TestWaitingEndpointsAreAQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	w := waitingEndpoints{set: map[model.EndpointKey]bool{}}
	var want []model.EndpointKey // one that left keeps its place until it was passed, so only membership is certain
	for step := range 20_000 {
		k := countedKeyNumber(r.IntN(200))
		switch r.IntN(5) {
		case 0, 1, 2:
			if w.push(k); !slices.Contains(want, k) {
				want = append(want, k)
			}
		case 3:
			w.remove(k)
			want = slices.DeleteFunc(want, func(o model.EndpointKey) bool { return o == k })
		default:
			got, ok := w.pop()
			i := slices.Index(want, got)
			if ok != (len(want) > 0) || ok && i < 0 {
				t.Fatalf("step %d: popped %v, %v of %d", step, got, ok, len(want))
			}
			if ok {
				want = slices.Delete(want, i, i+1)
			}
		}
		if len(w.set) != len(want) || len(w.queue) > 65+2*len(w.set) {
			t.Fatalf("step %d: %d endpoints, a queue of %d, want %d", step, len(w.set), len(w.queue), len(want))
		}
	}
}

// TestChangeCostsTheSameBeyondTheLimitOfCountedEndpoints counts allocated bytes: one counted endpoint leaves, one that waits
// takes its place.
func TestChangeCostsTheSameBeyondTheLimitOfCountedEndpoints(t *testing.T) {
	cost := func(waiting int) uint64 {
		tab := newTable(model.IPv4, nfnl.New(nil), Slots{}, AffinityLimits{})
		x := &tx{t: tab, limit: 1 << 30, softLimit: 1 << 30}
		for i := range MaxCountedEndpoints + waiting {
			tab.counted.add(x, countedKeyNumber(i), 1)
		}
		tab.flushCounted(x)
		if tab.counted.listed != MaxCountedEndpoints {
			t.Fatalf("%d listed", tab.counted.listed)
		}
		if n := len(tab.counted.waiting.set); n != waiting {
			t.Fatalf("%d wait, want %d", n, waiting)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range 50 {
			tab.counted.add(x, countedKeyNumber(i), -1)
			if err := tab.sweepCounted(x); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if n := len(tab.counted.waiting.set); n != waiting-50 || tab.counted.listed != MaxCountedEndpoints {
			t.Fatalf("%d wait, %d are listed", n, tab.counted.listed)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few, many := cost(100), cost(50_000)
	if many > 2*few+1<<20 {
		t.Errorf("50 changes allocate %d bytes while 50,000 endpoints wait, %d while 100 do", many, few)
	}
}
