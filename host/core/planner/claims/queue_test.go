package claims

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestClaimQueueIsSorted inserts and removes random claims, and compares with a sorted list. No list of the queue is long or
// empty.
func TestClaimQueueIsSorted(t *testing.T) {
	b := New()
	f := &plan.Frontend{}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var q claimQueue
		var want []claim
		for range 3000 {
			c := claim{f, &claimant{svc: &model.Service{Created: int64(r.IntN(1000))}}}
			if at := slices.IndexFunc(want, func(o claim) bool { return b.compareClaims(o, c) == 0 }); at < 0 {
				want = append(want, c)
				q.insert(c, b.compareClaims)
			} else if r.IntN(3) > 0 {
				want = slices.Delete(want, at, at+1)
				q.remove(c, b.compareClaims)
			}
		}
		slices.SortFunc(want, b.compareClaims)
		if got := slices.Collect(q.all()); q.n != len(want) || !slices.EqualFunc(got, want, func(x, y claim) bool { return b.compareClaims(x, y) == 0 }) {
			t.Fatalf("seed %d: %d claims, want %d in order", seed, q.n, len(want))
		}
		for _, l := range q.lists {
			if len(l) == 0 || len(l) >= maxClaimList {
				t.Fatalf("seed %d: a list of %d", seed, len(l))
			}
		}
	}
}
