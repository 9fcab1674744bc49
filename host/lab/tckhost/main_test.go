package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/tck"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "adapter" {
		if err := run(os.Args[2:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.MainWithoutLeaks(m)
}

// assembled has the modules that the tests have assembled, by their texts.
type assembled map[string][]byte

func (a assembled) assemble(ctx context.Context, text string) (module []byte, err error) {
	if module = a[text]; module == nil {
		module, err = hosts.Assemble(ctx, text)
		a[text] = module
	}
	return module, err
}

// prove runs the conformance kit.
func prove(t *testing.T, start func(context.Context) (hosts.Host, error), options hosts.Options) *tck.Report {
	t.Helper()
	testenv.RequireProgram(t, "wat2wasm", "wabt")
	_, report, err := hosts.Run(t.Context(), start, options)
	if err != nil {
		t.Fatal(err)
	}
	if n := report.Passed + report.Failed + report.Warned + report.Skipped; n != len(hosts.Requirements()) || n != len(report.Results) {
		t.Errorf("%d verdicts", n)
	}
	return report
}

// TestSluiceConforms drives sluice's plugin host as a process, with all inputs and without some.
func TestSluiceConforms(t *testing.T) {
	missing := "connections,outcomes,podLabels"
	for _, c := range []struct {
		name string
		args []string
		skip []string
	}{
		{"every input", []string{"adapter"}, []string{hosts.Missing}},
		{"without some inputs", []string{"adapter", "-missing", missing}, []string{hosts.Needs, hosts.Keys}},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := prove(t, hosts.Start(os.Stderr, os.Args[0], c.args...), hosts.Options{})
			var text strings.Builder
			report.Print(&text)
			t.Logf("\n%s", text.String())
			for _, x := range report.Results {
				if skipped := slices.Contains(c.skip, x.ID); x.Verdict == tck.Fail || (x.Verdict == tck.Skip) != skipped {
					t.Errorf("%s: %s: %s", x.ID, x.Verdict, x.Detail)
				}
			}
		})
	}
}

// TestABrokenHostFails breaks a host in one way each, and checks that the requirement that this is about fails.
func TestABrokenHostFails(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the kit forty times")
	}
	tried, modules := map[string]bool{}, assembled{}
	for _, c := range broken() {
		t.Run(c.name, func(t *testing.T) {
			tried[c.id] = true
			start := func(context.Context) (hosts.Host, error) { return newPlain(c.host) }
			options := hosts.Options{Only: []string{c.id}, Assemble: modules.assemble}
			if c.host.hangs != nil {
				options.Timeout = 2 * time.Second
			}
			report := prove(t, start, options)
			at := slices.IndexFunc(report.Results, func(x tck.Result) bool { return x.ID == c.id })
			if x := report.Results[at]; x.Verdict != tck.Fail || !regexp.MustCompile(c.want).MatchString(x.Detail) {
				t.Errorf("%s: %s: %q, want a failure that matches %q", c.id, x.Verdict, x.Detail, c.want)
			}
		})
	}
	for _, q := range hosts.Requirements() {
		if !tried[q.ID] {
			t.Errorf("no broken host fails %s: %s", q.ID, q.Text)
		}
	}
}

// TestThePlainHostConforms: what TestABrokenHostFails breaks is whole, but for what only the self-test of sluice finds.
func TestThePlainHostConforms(t *testing.T) {
	report := prove(t, func(context.Context) (hosts.Host, error) { return newPlain(&plain{}) }, hosts.Options{})
	for _, x := range report.Results {
		if x.Verdict == tck.Fail && x.ID != hosts.RefusesLoad {
			t.Errorf("%s: %s", x.ID, x.Detail)
		}
	}
}
