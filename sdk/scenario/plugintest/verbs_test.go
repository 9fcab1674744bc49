package plugintest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/scenario/plugintest"
)

func TestReadmeHasTheUsageOfEachVerb(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range plugintest.Verbs.Names() {
		if usage := "`" + strings.ReplaceAll(plugintest.Verbs.Usage(name), "|", `\|`) + "`"; !strings.Contains(string(text), usage) {
			t.Errorf("sdk/scenario/README.md does not have %s", usage)
		}
	}
}
