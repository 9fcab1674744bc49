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

// editDistance returns the edit distance of a and b, in which two neighbors swapped count as one edit, ignoring case, '-' and '_'.
func editDistance(a, b string) int {
	x, y := normalize(a), normalize(b)
	older, old, row := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		older, old, row = old, row, older
		row[0] = i + 1
		for j := range y {
			d := old[j]
			if x[i] != y[j] {
				d++
			}
			d = min(d, old[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				d = min(d, older[j-1]+1)
			}
			row[j+1] = d
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
