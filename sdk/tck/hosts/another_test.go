package hosts

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/tck"
)

// TestSDKHostInJavaScript proves a host that shares nothing with sluice but ABI.md, and makes other choices where the ABI leaves
// them: the kit demands no more than the ABI does.
func TestSDKHostInJavaScript(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	for _, program := range []string{"node", "wat2wasm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	if out, err := exec.Command("node", "testdata/host.mjs", "responses", "vectors/responses.json").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("golden responses that it reads otherwise: %v\n%s", err, out)
	}
	name, report, err := Run(t.Context(), Start(os.Stderr, "node", "testdata/host.mjs"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	report.Print(&text)
	t.Logf("host: %s\n%s", name, text.String())
	for _, x := range report.Results {
		if x.Verdict == tck.Fail || x.Verdict == tck.Skip && x.ID != Missing {
			t.Errorf("%s: %s: %s", x.ID, x.Verdict, x.Detail)
		}
	}
}
