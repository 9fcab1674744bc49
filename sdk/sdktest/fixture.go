package sdktest

import (
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

// ReadRequest reads a request from a file that `sluice explain --dump-request` has written, and fails the test on an error.
func ReadRequest(t testing.TB, file string) *abi.Request {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fixture.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return &f.Request
}
