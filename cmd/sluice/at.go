package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// atFlag is the time that plugins see instead of the present one.
type atFlag struct{ text string }

func (f *atFlag) register(cmd *cobra.Command, otherwise string) {
	cmd.Flags().StringVar(&f.text, "at", "", "time that plugins see: 22:00, in UTC, or RFC 3339 with its zone, 2026-03-01T22:00:00+01:00 (default: "+otherwise+")")
}

func (f *atFlag) given() bool { return f.text != "" }

// time returns the time of the flag. A time of day is the first such one from a time on.
func (f *atFlag) time(from time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, f.text); err == nil {
		return at.UTC(), nil
	}
	clock, err := scenario.ParseTimeOfDay(f.text)
	if err != nil {
		return time.Time{}, usageError{fmt.Errorf("--at %w; or RFC 3339, 2026-03-01T22:00:00+01:00", err)}
	}
	return scenario.NextTimeOfDay(from, clock), nil
}
