package kubelab

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/kubelab/binaries"
	"github.com/sluice-proxy/sluice/host/netlab"
)

// Main is for TestMain of a package whose tests need a cluster: like netlab.Main, it runs them in namespaces of their
// own. Where the programs have not been built it says what to run and runs none; with CI set it fails.
func Main(m interface{ Run() int }, more ...string) {
	if !netlab.Inside() {
		if _, err := binaries.Find(append(binaries.Cluster(), more...)...); err != nil {
			fmt.Fprintf(os.Stderr, "kubelab: SKIPPED, no tests were run: %v\n", err)
			if os.Getenv("CI") != "" {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	netlab.Main(m)
}
