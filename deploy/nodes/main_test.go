// Package nodes follows deploy/README.md on real kubelets, under load, and runs a part of Kubernetes' own network tests with sluice.
package nodes

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// enabled is the environment variable that make test-nodes sets: the tests take minutes, and need root and Debian 12.
const enabled = "SLUICE_TEST_NODES"

func TestMain(m *testing.M) {
	realcluster.Enter()
	if os.Getenv(enabled) == "" {
		fmt.Println("SKIPPED: these tests start a cluster with real kubelets: make test-nodes")
		return
	}
	realcluster.Main(m)
}
