package realcluster

import (
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Main is for TestMain of a package whose tests need a cluster. It calls Enter. If the programs have not been built, or without
// root, it prints why and skips the tests, or fails if CI is set.
func Main(m interface{ Run() int }) {
	Enter()
	if !testnet.Inside() {
		_, err := programs.Find()
		if err == nil && os.Geteuid() != 0 {
			err = fmt.Errorf("nodes need root")
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "realcluster: SKIPPED, no tests were run: %v\n", err)
			if os.Getenv("CI") != "" {
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	testcluster.Main(m)
}
