// Package deploy tests the image, by running it as a container runtime would with the rights of the manifests, and the
// manifests and the README, against a real API server.
package deploy

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(containerSpec); spec != "" {
		fmt.Fprintln(os.Stderr, "container:", enter(spec)) // returns only on error
		os.Exit(125)
	}
	testnet.Main(tests{m})
}

// tests runs the tests of this package and removes the image that they share.
type tests struct{ m *testing.M }

// Run implements the interface of testnet.Main.
func (t tests) Run() int {
	defer built.remove()
	return t.m.Run()
}
