package scenariotest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// Result is what the statements of a scenario have printed.
type Result struct {
	File    *scenario.File
	printed map[*scenario.Statement]printed
}

// printed is what a statement has printed.
type printed struct {
	lines []string
	err   error // of the plugin
}

var balances = map[uint8]string{
	abi.BalanceRandom: "random", abi.BalanceRoundRobin: "round-robin", abi.BalanceSourceHash: "source-hash", abi.BalanceLeastConnections: "least-connections",
}

// print executes decide and calls.
func (r *runner) print(s *scenario.Statement) error {
	if err := r.plan(); err != nil {
		return err
	}
	pool := uint8(abi.PoolCluster)
	if name, _ := s.Option("pool"); name == "local" {
		pool = abi.PoolLocal
	}
	d, err := r.engine.Decision(&r.cluster, pool)
	if err != nil {
		return err
	}
	if s.Verb == "calls" {
		r.result.printed[s] = printed{lines: []string{fmt.Sprint(d.Calls)}}
		return nil
	}
	for _, name := range s.Args {
		if r.cluster.endpoint(name) == nil {
			return fmt.Errorf("no endpoint %q", name)
		}
	}
	r.result.printed[s] = printed{r.decisionLines(&d, s.Args), d.Err}
	return nil
}

// decisionLines describes a decision, of the endpoints with these names, nil for all.
func (r *runner) decisionLines(d *Decision, names []string) (lines []string) {
	total, width := 0, 0
	for i := range r.cluster.Endpoints {
		total += int(d.Endpoints[i].Weight)
		width = max(width, utf8.RuneCountInString(r.cluster.Endpoints[i].Name))
	}
	for i := range r.cluster.Endpoints {
		name, share := r.cluster.Endpoints[i].Name, &d.Endpoints[i]
		if names != nil && !slices.Contains(names, name) {
			continue
		}
		percent := 0.0
		if total > 0 {
			percent = 100 * float64(share.Weight) / float64(total)
		}
		line := fmt.Sprintf("%-*s %5.1f %%  %s", width, name, percent, strings.Join(r.notes(share), "; "))
		lines = append(lines, printable(strings.TrimRight(line, " ")))
	}
	switch {
	case len(r.cluster.Endpoints) == 0:
		lines = append(lines, "no endpoints")
	case d.Origin == FromLastGood:
		lines = append(lines, "the last good decision: the plugin fails")
	case d.Origin == FromDefault && d.Err != nil:
		lines = append(lines, "the default rules: the plugin fails")
	case d.Origin == FromDefault:
		lines = append(lines, "the default rules: the plugin is not called")
	}
	if text := balances[d.Balance]; text != "" {
		lines = append(lines, "balance "+text)
	}
	if !d.Requeue.IsZero() {
		lines = append(lines, "again after "+d.Requeue.Sub(r.now()).String())
	}
	return lines
}

// notes returns what else is known of an endpoint's share.
func (r *runner) notes(s *Share) (notes []string) {
	if s.Reason != "" {
		notes = append(notes, s.Reason)
	}
	if s.Draining {
		notes = append(notes, "kept for its connections")
	}
	if at := s.ResetAt; at.After(r.now()) {
		notes = append(notes, "reset after "+at.Sub(r.now()).String())
	} else if !at.IsZero() {
		notes = append(notes, "reset")
	}
	if s.ShedPermille > 0 {
		notes = append(notes, fmt.Sprintf("%.1f %% of its connections reset within a minute", float64(s.ShedPermille)/10))
	}
	return notes
}

// printable replaces what a scenario cannot contain as an expected line.
func printable(text string) string {
	return strings.Map(scenario.Printable, text)
}

// Format returns the text of the scenario with what its statements have printed.
func (r *Result) Format() []byte {
	return r.File.Format(func(i int) []string { return r.printed[&r.File.Statements[i]].lines })
}

// Err returns an error that shows each difference between expected (-) and printed lines (+), with file and line; nil if there is
// none, or for a nil Result.
func (r *Result) Err() error {
	if r == nil {
		return nil
	}
	var all []error
	for i := range r.File.Statements {
		s := &r.File.Statements[i]
		got := r.printed[s]
		if slices.Equal(s.Expect, got.lines) {
			continue
		}
		text := diff(s.Expect, got.lines)
		if got.err != nil {
			text += "\n    the plugin fails: " + printable(strings.ReplaceAll(got.err.Error(), "\n", " "))
		}
		all = append(all, fmt.Errorf("%s:%d: %s, %s:%s", r.File.Name, s.Line, s.Verb, r.File.TimeText(s), text))
	}
	return errors.Join(all...)
}

// maxDiff bounds the lines on each side that diff compares; the rest counts as different.
const maxDiff = 1000

// diff returns the lines of want and got, each after a line end, with "-" before those of want only, and "+" before those of got
// only.
func diff(want, got []string) string {
	n, m := min(len(want), maxDiff), min(len(got), maxDiff)
	common := make([][]int, n+1) // length of the longest common subsequence of want[i:n] and got[j:m]
	for i := range common {
		common[i] = make([]int, m+1)
	}
	for i := n - 1; i >= 0; i-- {
		for j := m - 1; j >= 0; j-- {
			if want[i] == got[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var b strings.Builder
	i, j := 0, 0
	for i < len(want) || j < len(got) {
		switch {
		case i < n && j < m && want[i] == got[j]:
			b.WriteString("\n      " + want[i])
			i, j = i+1, j+1
		case i < len(want) && (i >= n || j >= m || common[i+1][j] >= common[i][j+1]):
			b.WriteString("\n    - " + want[i])
			i++
		default:
			b.WriteString("\n    + " + got[j])
			j++
		}
	}
	return b.String()
}
