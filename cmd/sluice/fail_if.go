package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/whatif/simulation"
)

// failIf are conditions on the summary of a simulation or replay that make the command fail with exitCondition after it has printed its result.
type failIf struct {
	texts      []string
	conditions []condition
}

// condition is a comparison of a metric of a run with a number.
type condition struct {
	text     string
	run      int // 0: A, 1: B
	metric   string
	operator string
	number   float64
}

// conditionError is why a command with --fail-if fails.
type conditionError struct{ error }

func (e conditionError) Unwrap() error { return e.error }

func (f *failIf) register(cmd *cobra.Command, examples string) {
	cmd.Flags().StringArrayVar(&f.texts, "fail-if", nil, "exit with code 4 if a condition holds, for example "+examples+"; may be repeated")
}

var conditionSyntax = regexp.MustCompile(`^\s*(?:([aAbB])\.)?([a-z0-9_]+)\s*(<=|>=|==|!=|<|>)\s*([0-9.eE+-]+)(%?)\s*$`)

// parse parses the conditions on the metrics of a simulation.
func (f *failIf) parse() error { return f.parseNames(namesOf(new(simulation.Summary).Metrics())) }

func namesOf(metrics []simulation.Metric) (names []string) {
	for _, m := range metrics {
		names = append(names, m.Name)
	}
	return names
}

// parseNames parses the conditions, given the names of the metrics.
func (f *failIf) parseNames(names []string) error {
	for _, text := range f.texts {
		m := conditionSyntax.FindStringSubmatch(text)
		if m == nil {
			return usageError{fmt.Errorf("--fail-if %q: want METRIC OPERATOR NUMBER, for example 'max_overload > 1.3'", text)}
		}
		c := condition{text: strings.TrimSpace(text), metric: m[2], operator: m[3]}
		if strings.EqualFold(m[1], "b") {
			c.run = 1
		}
		number, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return usageError{fmt.Errorf("--fail-if %q: %q is not a number", text, m[4])}
		}
		if c.number = number; m[5] != "" {
			c.number /= 100
		}
		if !slices.Contains(names, c.metric) {
			return usageError{fmt.Errorf("--fail-if %q: no metric %s%s; there are %s", text, c.metric, spelling.DidYouMean(c.metric, names), strings.Join(names, ", "))}
		}
		f.conditions = append(f.conditions, c)
	}
	return nil
}

// errorOf returns an error with a line for each condition on a simulation that holds, nil if there is none.
func (f *failIf) errorOf(r *simulation.Result) error {
	var runs []runMetrics
	for i := range r.Runs {
		runs = append(runs, runMetrics{r.Runs[i].Name, r.Runs[i].Summary.Metrics()})
	}
	return f.errorOfRuns(runs)
}

// runMetrics are the metrics of a run.
type runMetrics struct {
	name    string
	metrics []simulation.Metric
}

// errorOfRuns returns an error with a line for each condition that holds, nil if there is none.
func (f *failIf) errorOfRuns(runs []runMetrics) error {
	var errs []error
	for i := range f.conditions {
		c := &f.conditions[i]
		if c.run >= len(runs) {
			return usageError{fmt.Errorf("--fail-if %q: there is no run B without --against", c.text)}
		}
		for _, m := range runs[c.run].metrics {
			if m.Name == c.metric && c.holds(m.Value) {
				errs = append(errs, fmt.Errorf("--fail-if %s: %s of run %s is %s", c.text, m.Name, runs[c.run].name, metricText(m)))
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return conditionError{errors.Join(errs...)}
}

func (c *condition) holds(value float64) bool {
	switch c.operator {
	case "<":
		return value < c.number
	case "<=":
		return value <= c.number
	case ">":
		return value > c.number
	case ">=":
		return value >= c.number
	case "==":
		return value == c.number
	}
	return value != c.number
}

// metricText returns the value of a metric with its unit.
func metricText(m simulation.Metric) string {
	switch m.Unit {
	case "share":
		return fmt.Sprintf("%.1f %%", 100*m.Value)
	case "ratio":
		return fmt.Sprintf("%.2f", m.Value)
	}
	return strconv.FormatFloat(m.Value, 'f', -1, 64)
}
