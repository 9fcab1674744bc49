package plan

import (
	"slices"
	"strings"
)

// FormatDiff returns a human-readable line diff of the global part and the frontends that differ between two plans, "" when none
// does. Lines of prev start with -, lines of next with +.
func FormatDiff(prev, next *Plan) string {
	var b strings.Builder
	d := Diff(prev, next)
	if d.Global != nil {
		var old, now strings.Builder
		prev.Global.format(&old)
		next.Global.format(&now)
		diffLines(&b, old.String(), now.String())
	}
	slices.SortFunc(d.Changes, func(a, b Change) int {
		if c := a.frontend().Owner.Compare(b.frontend().Owner); c != 0 {
			return c
		}
		return a.Key.Compare(b.Key)
	})
	for _, c := range d.Changes {
		var old, now string
		if c.Old != nil {
			old = FormatFrontend(c.Old)
		}
		if c.New != nil {
			now = FormatFrontend(c.New)
		}
		diffLines(&b, old, now)
	}
	return b.String()
}

// frontend returns the frontend to sort a change by.
func (c Change) frontend() *Frontend {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// diffLines writes a line diff by longest common subsequence. Its cost is quadratic after the common prefix.
func diffLines(b *strings.Builder, old, now string) {
	x, y := slices.Collect(strings.Lines(old)), slices.Collect(strings.Lines(now))
	start := 0
	for start < len(x) && start < len(y) && x[start] == y[start] {
		b.WriteString("  " + x[start])
		start++
	}
	x, y = x[start:], y[start:]
	// common[i][j] is the length of the longest common subsequence of x[i:] and y[j:].
	common := make([][]int32, len(x)+1)
	for i := range common {
		common[i] = make([]int32, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			b.WriteString("  " + x[i])
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			b.WriteString("- " + x[i])
			i++
		default:
			b.WriteString("+ " + y[j])
			j++
		}
	}
}
