package engine

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// BenchmarkTakeFromMany takes a change of another namespace and 63 of 5,000 that wait, and reports the longest time.
func BenchmarkTakeFromMany(b *testing.B) {
	var many []model.Change
	for i := range 5000 {
		many = append(many, changeOfSlice("many", i, i))
	}
	serviceOf := func(c *model.Change) model.Name { return c.Slice.Service }
	longest := time.Duration(0)
	for b.Loop() {
		q := newChangeQueue(Observers{})
		q.put(many)
		for i, left := 0, 1; left > 0; i++ {
			q.put([]model.Change{changeOfSlice("other", 0, i%3)})
			begin := time.Now()
			_, left = q.take(maxIntake, serviceOf)
			longest = max(longest, time.Since(begin))
		}
	}
	b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
}
