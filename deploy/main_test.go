// Package deploy tests what is in this folder: the image by running it as a container runtime would, with the rights
// that the manifests give, and the manifests on a real API server.
package deploy

import (
	"fmt"
	"os"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(containerSpec); spec != "" {
		fmt.Fprintln(os.Stderr, "container:", enter(spec)) // comes back only when it fails
		os.Exit(125)
	}
	testnet.Main(tests{m})
}

// tests are those of this package, with what they share.
type tests struct{ m *testing.M }

// Run implements what testnet.Main wants.
func (t tests) Run() int {
	defer built.remove()
	return t.m.Run()
}
