// Package spelling suggests the name that somebody probably meant.
package spelling

import (
	"fmt"
	"slices"
	"strings"
)

// DidYouMean returns ` (did you mean "x"?)` with the candidate most similar to s, or "". Names with other words are not similar:
// max is not min.
func DidYouMean(s string, candidates []string) string {
	best, least := "", 0
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d, similar := compare(s, c); similar && c != s && (best == "" || d < least) {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// compare returns the edit distance of two names, and whether one could be the other misspelled: one mistake in each word, and
// one more for every five letters above five; or one mistake if words were joined or split.
func compare(a, b string) (distance int, similar bool) {
	x, y := words(a), words(b)
	if len(x) != len(y) {
		joined := strings.Join(x, "")
		distance = editDistance(joined, strings.Join(y, ""))
		return distance, distance <= 1 && distance < len(joined)
	}
	for i := range x {
		d := editDistance(x[i], y[i])
		if d > max(1, len(x[i])/5) || d >= max(len(x[i]), len(y[i])) {
			return 0, false
		}
		distance += d
	}
	return distance, true
}

// words splits the first 100 bytes of a name at punctuation and at the capitals of camelCase, in lower case.
func words(name string) []string {
	var b strings.Builder
	lower := false
	for _, c := range []byte(name[:min(len(name), 100)]) {
		upper := c >= 'A' && c <= 'Z'
		switch {
		case strings.IndexByte("-_./: ", c) >= 0:
			c = ' '
		case upper && lower:
			b.WriteByte(' ')
		}
		lower = c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if upper {
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return strings.Fields(b.String())
}

// editDistance returns the edit distance of x and y, in which two neighbors swapped count as one edit.
func editDistance(x, y string) int {
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
