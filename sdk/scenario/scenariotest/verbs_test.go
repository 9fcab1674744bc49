package scenariotest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

func TestReadmeHasTheUsageOfEachVerb(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scenariotest.Verbs.Names() {
		if usage := "`" + strings.ReplaceAll(scenariotest.Verbs.Usage(name), "|", `\|`) + "`"; !strings.Contains(string(text), usage) {
			t.Errorf("sdk/scenario/README.md does not have %s", usage)
		}
	}
}
