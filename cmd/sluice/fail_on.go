package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// What --fail-on may list.
const (
	onFailing  = "failing"
	onDegraded = "degraded"
)

// failOn are the states that make a command fail with exitState after it has printed its result.
type failOn []string

func (f *failOn) register(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar((*[]string)(f), "fail-on", nil, "exit with code 3 if something is failing, degraded, or either: failing,degraded")
}

func (f failOn) check() error {
	for _, state := range f {
		if err := checkFlag("fail-on", state, onFailing, onDegraded); err != nil {
			return err
		}
	}
	return nil
}

// stateError is why a command with --fail-on fails.
type stateError struct{ error }

func (e stateError) Unwrap() error { return e.error }

// maxStates bounds the problems that --fail-on prints.
const maxStates = 20

// errorOf returns an error with a line for each problem, nil if there is none of the listed states.
func (f failOn) errorOf(failing, degraded []string) error {
	var errs []error
	add := func(state string, problems []string) {
		if !slices.Contains(f, state) {
			return
		}
		for i, p := range problems {
			if i == maxStates {
				errs = append(errs, fmt.Errorf("%s: %d more", state, len(problems)-i))
				return
			}
			errs = append(errs, fmt.Errorf("%s: %s", state, p))
		}
	}
	add(onFailing, failing)
	add(onDegraded, degraded)
	if len(errs) == 0 {
		return nil
	}
	return stateError{errors.Join(errs...)}
}
