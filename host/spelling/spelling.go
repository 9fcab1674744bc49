// Package spelling suggests the name that somebody probably meant.
package spelling

import (
	"fmt"
	"slices"
)

// DidYouMean returns ` (did you mean "x"?)` with the candidate most similar to s, or "".
func DidYouMean(s string, candidates []string) string {
	best, least := "", (len(s)+1)/3
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := editDistance(s, c); d <= least && c != s && (best == "" || d < least) {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// editDistance returns the Levenshtein distance of a and b, ignoring case, '-' and '_'.
func editDistance(a, b string) int {
	x, y := normalize(a), normalize(b)
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		before := row[0]
		row[0] = i + 1
		for j := range y {
			cost := before
			if x[i] != y[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(y)]
}

func normalize(s string) string {
	out := make([]byte, 0, min(len(s), 100))
	for i := 0; i < len(s) && len(out) < 100; i++ {
		switch c := s[i]; {
		case c >= 'A' && c <= 'Z':
			out = append(out, c+'a'-'A')
		case c != '-' && c != '_':
			out = append(out, c)
		}
	}
	return string(out)
}
