package outcomes

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestOpenAddsTheAttemptsSince compares Open with totals that are copied at each count, while endpoints come, go and count again
// from 0.
func TestOpenAddsTheAttemptsSince(t *testing.T) {
	const endpoints = 6
	for seed := range 200 {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		tr, now := NewTracker(), start
		var open Open
		reading, counted, before := map[model.EndpointKey]Counters{}, map[model.EndpointKey]uint32{}, map[model.EndpointKey]uint64{}
		since := map[model.EndpointKey]int64{}
		for step := range 60 {
			now = now.Add(time.Second)
			k := key(r.IntN(endpoints))
			switch r.IntN(6) {
			case 0:
				delete(reading, k)
			case 1:
				reading[k] = Counters{}
			case 2:
				counted, before, since = map[model.EndpointKey]uint32{}, map[model.EndpointKey]uint64{}, map[model.EndpointKey]int64{}
				for n := range endpoints - 1 {
					counted[key(n)] = uint32(r.IntN(100))
					if o, _, ok := tr.Get(key(n)); ok {
						before[key(n)], since[key(n)] = o.TotalAttempts, o.Since
					}
				}
				open = NewOpen(now, maps.Clone(counted), tr)
			default:
				c := reading[k]
				c.Attempts += uint64(r.IntN(5))
				reading[k] = c
			}
			tr.Update(now, maps.All(reading))
			for n := range endpoints {
				want, ok := counted[key(n)]
				if o, _, known := tr.Get(key(n)); ok && known {
					if want += uint32(o.TotalAttempts); since[key(n)] == o.Since {
						want -= uint32(before[key(n)])
					}
				}
				if got, has := open.Connections(key(n), tr); got != want || has != ok {
					t.Fatalf("seed %d, step %d, endpoint %d: %d, %v, want %d, %v", seed, step, n, got, has, want, ok)
				}
			}
		}
	}
}

func BenchmarkNewOpen(b *testing.B) {
	tr, reading, count := NewTracker(), map[model.EndpointKey]Counters{}, map[model.EndpointKey]uint32{}
	for n := range 10_000 {
		reading[key(n)], count[key(n)] = Counters{Attempts: 1}, 0
	}
	tr.Update(start, maps.All(reading))
	for b.Loop() {
		NewOpen(start, count, tr)
	}
}
