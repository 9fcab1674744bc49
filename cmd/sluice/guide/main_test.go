// Package guide does what host/backend/ipvs/FROM-KUBE-PROXY.md says, word for word, on a node that the real kube-proxy
// has in mode ipvs, with a real API server, under load, and looks whether what the guide promises is so.
//
// The node is a test kernel's own machine (host/lab/vm): no other has IPVS for certain, and settings that belong to
// the whole machine are a part of it.
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
