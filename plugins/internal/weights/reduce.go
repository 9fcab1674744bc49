package weights

import (
	"cmp"
	"slices"
)

// Reduce replaces numbers by small integers of the same ratios, as exactly as a sum of at most maxTotal permits. It divides them by
// their greatest common divisor; if that is not enough, it distributes maxTotal, or the count of the positive numbers if there are
// more, in proportion: a number that would get less than 1 gets 1, and the others share the rest by largest remainder, with ties
// resolved by order. Then every other number gets its exact part of the rest, rounded up or down. The numbers must be at most 2⁴⁶,
// and their sum less than 2⁶⁴.
func Reduce(numbers []uint64, maxTotal uint64) {
	var g, sum, count uint64
	for _, n := range numbers {
		if n > 0 {
			g, sum, count = GCD(g, n), sum+n, count+1
		}
	}
	if count == 0 {
		return
	}
	if sum/g <= maxTotal {
		for i := range numbers {
			numbers[i] /= g
		}
		return
	}
	left := max(maxTotal, count)
	if left == count {
		for i := range numbers {
			numbers[i] = min(numbers[i], 1)
		}
		return
	}
	apportion(numbers, left, sum)
}

// remainder is a number that is rounded down, and what that leaves.
type remainder struct {
	index int
	left  uint64
}

// apportion distributes left in proportion to the numbers with this sum, at least 1 to each positive one. left is more than their
// count.
func apportion(numbers []uint64, left, sum uint64) {
	var large []remainder
	for i, n := range numbers {
		if n > 0 {
			large = append(large, remainder{index: i})
		}
	}
	for again := true; again; { // those with 1 leave less for the others, of which more may then get 1
		again = false
		large = slices.DeleteFunc(large, func(r remainder) bool {
			n := numbers[r.index]
			if n*left >= sum {
				return false
			}
			numbers[r.index], again = 1, true
			left, sum = left-1, sum-n
			return true
		})
	}
	for i := range large {
		r := &large[i]
		n := numbers[r.index] * left
		numbers[r.index], r.left = n/sum, n%sum
	}
	for _, r := range large {
		left -= numbers[r.index]
	}
	slices.SortStableFunc(large, func(a, b remainder) int { return cmp.Compare(b.left, a.left) })
	for _, r := range large[:left] {
		numbers[r.index]++
	}
}
