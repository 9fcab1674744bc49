package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/whatif/simulation"
)

// TestEveryNumberOfTheCommandLineHasARange: NaN, infinity and what no field can have are errors of the command line, of every
// command.
func TestEveryNumberOfTheCommandLineHasARange(t *testing.T) {
	checked := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "string", "bool", "stringArray", "stringSlice":
				return
			}
			checked++
			if _, ok := f.Value.(interface{ InRange() }); !ok {
				t.Errorf("%s --%s: a %s without a range: use flagrange", cmd.CommandPath(), f.Name, f.Value.Type())
			}
			for _, v := range []string{"NaN", "Inf", "-Inf", "1e400", "99999999999999999999", "99999999999999999999h", ""} {
				if f.Value.Set(v) == nil {
					t.Errorf("%s --%s %q is accepted", cmd.CommandPath(), f.Name, v)
				}
			}
			if f.Name != "seed" {
				for _, v := range []string{"-1", "-1s"} {
					if f.Value.Set(v) == nil {
						t.Errorf("%s --%s %q is accepted", cmd.CommandPath(), f.Name, v)
					}
				}
			}
		})
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRootCommand())
	if checked < 9 {
		t.Errorf("%d flags are numbers", checked)
	}
}

func TestANumberOfAConditionIsFinite(t *testing.T) {
	for _, number := range []string{"NaN", "Inf", "1e999", "-1e999", "1e", "--1", "0x1", "40%%"} {
		f := &failIf{texts: []string{"max_overload > " + number}}
		if err := f.parse("", new(simulation.Summary).Metrics(), nil); err == nil || !errors.As(err, new(usageError)) {
			t.Errorf("%s: %v", number, err)
		}
	}
}

func TestARateThatIsNoNumberIsAnErrorOfTheCommandLine(t *testing.T) {
	old := stderr
	defer func() { stderr = old }()
	var out bytes.Buffer
	stderr = printable.NewWriter(&out)
	for _, args := range [][]string{{"simulate", "--rate", "NaN"}, {"simulate", "--rate=-Inf"}, {"simulate", "--step", "1000000h"}, {"run", "--record-size", "9223372036854775807"}, {"drains", "--interval", "1ns"}} {
		if code := execute(t.Context(), args); code != exitUsage || !strings.Contains(out.String(), "want ") {
			t.Errorf("%q: exit code %d, %s", args, code, out.String())
		}
		out.Reset()
	}
}
