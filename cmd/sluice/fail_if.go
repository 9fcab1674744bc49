package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// failIf are conditions on a simulation or replay that make the command fail with exitCondition after it has printed its result.
type failIf struct {
	texts      []string
	conditions verdict.Conditions
}

// conditionError is why a command with --fail-if fails.
type conditionError struct{ error }

func (e conditionError) Unwrap() error { return e.error }

func (f *failIf) register(cmd *cobra.Command, examples string) {
	cmd.Flags().StringArrayVar(&f.texts, "fail-if", nil, "exit with code 4 if a condition holds, for example "+examples+"; may be repeated")
}

// parse parses the conditions, given metrics of a run and of a Service.
func (f *failIf) parse(against string, ofRun, ofService []verdict.Metric) error {
	for _, text := range f.texts {
		c, err := verdict.ParseCondition(text, namesOf(ofRun), namesOf(ofService))
		if err == nil && c.NeedsBaseline() && against == "" {
			err = fmt.Errorf("%q: there is no baseline without --against", text)
		}
		if err != nil {
			return usageError{fmt.Errorf("--fail-if %w", err)}
		}
		f.conditions = append(f.conditions, c)
	}
	return nil
}

func namesOf(metrics []verdict.Metric) (names []string) {
	for _, m := range metrics {
		names = append(names, m.Name)
	}
	return names
}

// err returns an error if a condition holds.
func (f *failIf) err() error {
	err, holds := f.conditions.Err()
	if holds {
		return conditionError{err}
	}
	return err
}
