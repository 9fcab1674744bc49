// Package verdict compares the numbers of a candidate with those of a baseline: what simulations and replays have in common.
package verdict

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Names of the runs: of the configuration that is tried, and of the one that it is compared with.
const (
	Candidate = "candidate"
	Baseline  = "baseline"
)

// Runs are the names in the order of the runs of a result.
var Runs = []string{Candidate, Baseline}

// DefaultRules is how texts call a run without a configuration.
const DefaultRules = "the default rules"

// Label returns how texts call a run: by its configuration file.
func Label(file string) string {
	if file == "" {
		return DefaultRules
	}
	return file
}

// Run is what each run of a result has.
type Run struct {
	Name   string   `json:"name"`   // see Runs
	Config string   `json:"config"` // file, "" for the default rules
	Errors []string `json:"errors"` // failures of policies, each once, at most MaxErrors
}

// MaxErrors bounds Run.Errors.
const MaxErrors = 20

// Table is the numbers of a result.
type Table struct {
	Runs    []Run
	Metrics [][]Metric // of each run, with the same names
	Changes []Change   // nil: there is one run
}

// Title returns the title of a page about the runs.
func (t *Table) Title() string {
	var labels []string
	for i := range t.Runs {
		labels = append(labels, Label(t.Runs[i].Config))
	}
	return strings.Join(labels, " against ")
}

// Failures are the errors of the runs, in sentences.
func (t *Table) Failures() (out []string) {
	for i := range t.Runs {
		for _, err := range t.Runs[i].Errors {
			out = append(out, "Failure with "+Label(t.Runs[i].Config)+": "+err)
		}
	}
	return out
}

// ServicePort identifies a Service port in one family.
type ServicePort struct {
	Service  string `json:"service"` // namespace/name
	Port     string `json:"port"`    // name, or number if it has none
	Protocol string `json:"protocol"`
	Family   string `json:"family"` // IPv4 or IPv6
}

// Compare orders by Service, port, protocol and family.
func (p ServicePort) Compare(q ServicePort) int {
	return cmp.Or(cmp.Compare(p.Service, q.Service), cmp.Compare(p.Port, q.Port), cmp.Compare(p.Protocol, q.Protocol), cmp.Compare(p.Family, q.Family))
}

// Pair is a number of both runs.
type Pair struct {
	Candidate float64 `json:"candidate"`
	Baseline  float64 `json:"baseline"`
}

// Unit is that of a Metric.
type Unit uint8

// The units.
const (
	Count Unit = iota
	Share      // 0 to 1
	Ratio
)

// Metric is a number of a run, or of a Service of it. Less is better.
type Metric struct {
	Name    string // as --fail-if names it
	Value   float64
	Unit    Unit
	Text    string // what it is, in a sentence; "": no sentence is about it
	Neutral bool   // neither less nor more is better
}

// String returns the value with its unit.
func (m Metric) String() string {
	switch m.Unit {
	case Share:
		return Percent(m.Value)
	case Ratio:
		return fmt.Sprintf("%.2f", m.Value)
	}
	return strconv.FormatFloat(m.Value, 'f', -1, 64)
}

// Percent formats a share.
func Percent(v float64) string {
	if v > 0 && v < 0.0005 {
		return "<0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// Change is a metric of both runs.
type Change struct {
	Name string `json:"name"`
	Pair
	Change    string `json:"change"` // of the candidate: better, worse, or "" if it is the same or neither
	candidate Metric
	baseline  Metric
}

// String returns the change in a sentence.
func (c *Change) String() string {
	return fmt.Sprintf("%s %s instead of %s", c.candidate.Text, c.candidate, c.baseline)
}

// Compare returns the changes between the metrics of both runs, which have the same names.
func Compare(candidate, baseline []Metric) (out []Change) {
	for i, m := range candidate {
		b := baseline[i]
		c := Change{Name: m.Name, Pair: Pair{m.Value, b.Value}, candidate: m, baseline: b}
		switch {
		case m.Neutral || m.String() == b.String():
		case m.Value < b.Value:
			c.Change = "better"
		default:
			c.Change = "worse"
		}
		out = append(out, c)
	}
	return out
}

// Sentences say what is better and what is worse about the candidate.
func Sentences(changes []Change) (out []string) {
	texts := map[string][]string{}
	for i := range changes {
		if c := &changes[i]; c.candidate.Text != "" {
			texts[c.Change] = append(texts[c.Change], c.String())
		}
	}
	for _, kind := range []string{"better", "worse"} {
		if len(texts[kind]) > 0 {
			out = append(out, strings.ToUpper(kind[:1])+kind[1:]+": "+strings.Join(texts[kind], "; ")+".")
		}
	}
	if len(out) == 0 {
		out = append(out, "No number is better or worse.")
	}
	return out
}
