package weights

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestReduceKeepsRatios(t *testing.T) {
	for _, tt := range []struct {
		numbers  []uint64
		maxTotal uint64
		want     []uint64
	}{
		{[]uint64{1000, 1000, 0}, 1000, []uint64{1, 1, 0}},
		{[]uint64{1500, 500}, 1000, []uint64{3, 1}},
		{[]uint64{0, 0}, 10, []uint64{0, 0}},
		{nil, 10, nil},
		{[]uint64{1001, 1000}, 10, []uint64{5, 5}},
		{[]uint64{2, 1, 1, 1}, 4, []uint64{1, 1, 1, 1}}, // no room for more
		{[]uint64{2, 1, 1}, 1, []uint64{1, 1, 1}},
		{[]uint64{999_999, 1}, 100, []uint64{99, 1}},
		{[]uint64{65535 * 1_000_000_000, 1, 65535 * 1_000_000_000}, 65535, []uint64{32767, 1, 32767}},
	} {
		got := slices.Clone(tt.numbers)
		if Reduce(got, tt.maxTotal); !slices.Equal(got, tt.want) {
			t.Errorf("%v to %d: %v, want %v", tt.numbers, tt.maxTotal, got, tt.want)
		}
	}
}

// With any numbers: the sum is at most maxTotal, positive numbers stay positive and in order, and a number that does not have 1 for
// being small is less than 1 from its exact part.
func TestReduceIsAsExactAsTheSumPermits(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 3000 {
		numbers := make([]uint64, 1+rnd.IntN(30))
		count := 0
		for i := range numbers {
			if numbers[i] = uint64(rnd.IntN(1 << rnd.IntN(40))); numbers[i] > 0 {
				count++
			}
		}
		maxTotal := 1 + rnd.IntN(2000)
		got := slices.Clone(numbers)
		Reduce(got, uint64(maxTotal))
		total, rest, sum := 0, max(maxTotal, count), 0.0
		for i, n := range got {
			if total += int(n); (n == 0) != (numbers[i] == 0) {
				t.Fatalf("round %d: %v became %v", round, numbers, got)
			}
			if n == 1 {
				rest--
			} else {
				sum += float64(numbers[i])
			}
			for j, m := range got {
				if numbers[i] > numbers[j] && n < m {
					t.Fatalf("round %d: %d became %d, %d became %d", round, numbers[i], n, numbers[j], m)
				}
			}
		}
		if total > max(maxTotal, count) {
			t.Fatalf("round %d: %v to %d: %v", round, numbers, maxTotal, got)
		}
		for i, n := range got {
			// The whole may be divided by a common divisor, and less than maxTotal.
			if exact := float64(numbers[i]) * float64(total-(max(maxTotal, count)-rest)) / sum; n > 1 && total == max(maxTotal, count) && math.Abs(float64(n)-exact) > 1.5 {
				t.Fatalf("round %d: %v to %d: %v, endpoint %d should have %.2f", round, numbers, maxTotal, got, i, exact)
			}
		}
	}
}
