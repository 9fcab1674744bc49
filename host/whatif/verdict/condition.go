package verdict

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// Condition is a comparison of a metric with a number, or with that of the baseline: of a run, or of each Service that a pattern
// matches.
type Condition struct {
	text       string
	baseline   bool   // of the baseline, not the candidate
	pattern    string // namespace/name with * and ?; "": of the run
	metric     string
	operator   string
	number     float64
	toBaseline bool // instead of number
	matched    bool // a Service
	violations []string
	count      int // of violations
}

// Conditions are those of an execution. They are used by one goroutine.
type Conditions []*Condition

// Clone returns the conditions without what has been added to them.
func (cs Conditions) Clone() (out Conditions) {
	for _, c := range cs {
		clone := *c
		clone.matched, clone.violations, clone.count = false, nil, 0
		out = append(out, &clone)
	}
	return out
}

// Merge adds what has been added to a clone.
func (cs Conditions) Merge(clone Conditions) {
	for i, c := range cs {
		c.matched = c.matched || clone[i].matched
		c.count += clone[i].count
		c.keep(clone[i].violations)
	}
}

// AddRuns checks the metrics of runs, one or two.
func (cs Conditions) AddRuns(runs ...[]Metric) {
	for _, c := range cs {
		if c.pattern == "" {
			c.check("", runs)
		}
	}
}

// AddService checks the metrics of a Service port, which label names, in each run.
func (cs Conditions) AddService(service, label string, runs ...[]Metric) {
	for _, c := range cs {
		if c.Matches(service) {
			c.matched = true
			c.check(" of "+label, runs)
		}
	}
}

// Matches reports whether the condition is about a Service.
func (c *Condition) Matches(service string) bool {
	ok, _ := path.Match(c.pattern, service)
	return ok
}

// Name reports whether a condition names a Service, without a pattern.
func (cs Conditions) Name(service string) bool {
	return slices.ContainsFunc(cs, func(c *Condition) bool { return c.pattern == service })
}

// Err returns an error with a line for each condition that holds or that is about no Service that there is, and whether one
// holds.
func (cs Conditions) Err() (err error, some bool) {
	var errs []error
	for _, c := range cs {
		err, holds := c.err()
		errs, some = append(errs, err), some || holds
	}
	return errors.Join(errs...), some
}

// maxViolations bounds the Services that an error names.
const maxViolations = 10

var syntax = regexp.MustCompile(`^\s*(?:(candidate|baseline)\.)?([a-z0-9_]+)(?:\(([^()\s]+)\))?\s*(<=|>=|==|!=|<|>)\s*(?:(baseline)|([0-9.eE+-]+)(%?))\s*$`)

// ParseCondition parses a condition, given the names of the metrics of runs and of Services.
func ParseCondition(text string, ofRun, ofService []string) (*Condition, error) {
	m := syntax.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("%q: want METRIC OPERATOR NUMBER or METRIC(NAMESPACE/NAME) OPERATOR NUMBER, for example 'max_overload > 1.3'", text)
	}
	c := &Condition{text: strings.TrimSpace(text), baseline: m[1] == Baseline, metric: m[2], pattern: m[3], operator: m[4], toBaseline: m[5] != ""}
	names := ofRun
	if c.pattern != "" {
		names = ofService
		if _, err := path.Match(c.pattern, ""); err != nil || strings.Count(c.pattern, "/") > 1 {
			return nil, fmt.Errorf("%q: %q: want NAMESPACE/NAME, where * is any text", text, c.pattern)
		}
		if !strings.Contains(c.pattern, "/") && c.pattern != "*" {
			return nil, fmt.Errorf("%q: %q: want NAMESPACE/NAME, where * is any text", text, c.pattern)
		}
		if c.pattern == "*" {
			c.pattern = "*/*"
		}
	}
	if !slices.Contains(names, c.metric) {
		return nil, fmt.Errorf("%q: no metric %s%s; there are %s", text, c.metric, spelling.DidYouMean(c.metric, names), strings.Join(names, ", "))
	}
	if c.toBaseline && c.baseline {
		return nil, fmt.Errorf("%q: compares the baseline with itself", text)
	}
	if m[6] != "" {
		number, err := strconv.ParseFloat(m[6], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %q is not a number", text, m[6])
		}
		if c.number = number; m[7] != "" {
			c.number /= 100
		}
	}
	return c, nil
}

// NeedsBaseline reports whether the condition needs two runs.
func (c *Condition) NeedsBaseline() bool { return c.baseline || c.toBaseline }

func (c *Condition) check(of string, runs [][]Metric) {
	at := 0
	if c.baseline {
		at = 1
	}
	if at >= len(runs) || c.toBaseline && len(runs) < 2 {
		return
	}
	i := slices.IndexFunc(runs[at], func(m Metric) bool { return m.Name == c.metric })
	m, number := runs[at][i], c.number
	text := fmt.Sprintf("%s%s of the %s is %s", m.Name, of, Runs[at], m)
	if c.toBaseline {
		number = runs[1][i].Value
		text += ", of the baseline " + runs[1][i].String()
	}
	if !holds(m.Value, c.operator, number) {
		return
	}
	c.count++
	c.keep([]string{text})
}

// keep adds violations, of which the first maxViolations in order are named.
func (c *Condition) keep(violations []string) {
	c.violations = append(c.violations, violations...)
	slices.Sort(c.violations)
	c.violations = c.violations[:min(len(c.violations), maxViolations)]
}

// err returns an error if the condition holds, or if it is about no Service that there is.
func (c *Condition) err() (err error, holds bool) {
	if c.count == 0 {
		if c.pattern != "" && !c.matched {
			err = fmt.Errorf("--fail-if %s: there is no such Service", c.text)
		}
		return err, false
	}
	text := strings.Join(c.violations, "; ")
	if more := c.count - len(c.violations); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return fmt.Errorf("--fail-if %s: %s", c.text, text), true
}

func holds(value float64, operator string, number float64) bool {
	switch operator {
	case "<":
		return value < number
	case "<=":
		return value <= number
	case ">":
		return value > number
	case ">=":
		return value >= number
	case "==":
		return value == number
	}
	return value != number
}
