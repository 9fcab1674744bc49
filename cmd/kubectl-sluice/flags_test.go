package main

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestEveryNumberOfTheCommandLineHasARange(t *testing.T) {
	checked := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "string", "bool", "stringArray", "stringSlice":
				return
			}
			checked++
			for _, v := range []string{"NaN", "Inf", "-1", "-1s", "0", "99999999999999999999h", ""} {
				if f.Value.Set(v) == nil {
					t.Errorf("%s --%s %q is accepted", cmd.CommandPath(), f.Name, v)
				}
			}
		})
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRootCommand())
	if checked < 2 {
		t.Errorf("%d flags are numbers", checked)
	}
}
