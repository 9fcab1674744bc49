// Package nodes follows deploy/README.md on real kubelets, under load, and runs a part of Kubernetes' own network tests with
// sluice. It tries network plugins beside sluice too.
package nodes

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/helm"
	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// enabled are the environment variables that make test-nodes, make test-cni and make test-handover set: the tests take minutes,
// and need root and Debian 12. The second has the names of network plugins.
const enabledNodes, enabledPlugins, enabledHandOver = "SLUICE_TEST_NODES", "SLUICE_TEST_CNI", "SLUICE_TEST_HANDOVER"

func TestMain(m *testing.M) {
	realcluster.Enter()
	if os.Getenv(enabledNodes)+os.Getenv(enabledPlugins)+os.Getenv(enabledHandOver) == "" {
		fmt.Println("SKIPPED: these tests start clusters with real kubelets: make test-nodes, make test-cni, make test-handover")
		return
	}
	if os.Getenv(enabledNodes) != "" {
		if _, err := helm.Build(context.Background(), os.Stderr); err != nil { // before the namespaces, which have no network
			fmt.Fprintln(os.Stderr, "build helm:", err)
			os.Exit(1)
		}
	}
	realcluster.Main(m)
}
