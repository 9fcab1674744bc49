package testcluster

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/lab/testcluster/binaries"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Main is for TestMain of a package whose tests need a cluster. Like testnet.Main, it runs them in their own namespaces.
// If the programs have not been built it prints how to build them and skips the tests, or fails if CI is set.
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
