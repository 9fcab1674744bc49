package testcluster

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Main is for TestMain of a package whose tests need a cluster: like testnet.Main, it runs them in namespaces of their
// own. Where the programs have not been built it says what to run and runs none; with CI set it fails.
func Main(m interface{ Run() int }, more ...string) {
	if !testnet.Inside() {
		if _, err := binaries.Find(append(binaries.Cluster(), more...)...); err != nil {
			fmt.Fprintf(os.Stderr, "testcluster: SKIPPED, no tests were run: %v\n", err)
			if os.Getenv("CI") != "" {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	testnet.Main(m)
}
