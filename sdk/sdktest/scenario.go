package sdktest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/scenario"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// RunScenario executes scenarios natively, as `sluice plugin test` does with the module, each in a subtest, and fails the test
// where they print something else than expected. pattern is the name of a file, or a pattern of filepath.Match that matches some.
// If the test program has a boolean flag -update and it is set, the files get what is printed instead.
func RunScenario(t *testing.T, create func() sdk.Plugin, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenario %s (%v)", pattern, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScenario(t, create, file) })
	}
}

func runScenario(t *testing.T, create func() sdk.Plugin, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := scenario.Parse(file, text)
	if err != nil {
		t.Fatal(err)
	}
	result, err := scenariotest.Run(f, NewEngine(create), nil)
	if err != nil {
		t.Fatal(err)
	}
	if u := flag.Lookup("update"); u != nil && u.Value.String() == "true" {
		if err := os.WriteFile(file, result.Format(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := result.Err(); err != nil {
		t.Error(err)
	}
}
