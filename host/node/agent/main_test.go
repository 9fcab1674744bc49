package agent

import (
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// TestMain is also the processes in which plugins run.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "plugin-process" {
		os.Exit(wasm.ProcessMain(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}
