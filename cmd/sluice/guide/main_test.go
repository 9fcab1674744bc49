// Package guide follows host/backend/ipvs/FROM-KUBE-PROXY.md literally on a node with the real kube-proxy in mode ipvs and a
// real API server, under load, and checks what the guide states.
//
// The node is a virtual machine with a test kernel (host/lab/vm), which has IPVS, and because some sysctls are global.
package guide

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
)

func TestMain(m *testing.M) {
	if os.Getenv("SLUICE_VM") == "" {
		fmt.Fprintln(os.Stderr, "guide: SKIPPED, no tests were run: this machine is not a test kernel's; make test-guide runs them")
		os.Exit(0)
	}
	testcluster.Main(m, binaries.KubeProxy)
}
