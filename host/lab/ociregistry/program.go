package ociregistry

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/buildcache"
)

// programs are built from modules beside this package.
var programs = buildcache.Programs{
	Kind: "registry", Source: "host/lab/ociregistry", Modules: []string{"cosign", "distribution"},
	List: map[string]buildcache.Program{
		"distribution": {Module: "distribution", Package: "."},
		"referrers":    {Module: "cosign", Package: "./referrers"},
		"cosign":       {Module: "cosign", Package: "github.com/sigstore/cosign/v3/cmd/cosign"},
	},
	Command: func([]string) string { return "make test-all" },
}

// Build builds the program of a registry, if the user's cache does not have it: for tests in a network namespace, where no module
// can be downloaded.
func Build(ctx context.Context, progress io.Writer) error {
	_, err := programs.Build(ctx, progress, "distribution")
	return err
}

// program returns the path of a program, after building it if the user's cache does not have it.
func program(t testing.TB, name string) string {
	t.Helper()
	dir, err := programs.Build(t.Context(), t.Output(), name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Cosign returns the path of cosign 3, after building it if the user's cache does not have it: minutes, which make test does not
// take.
func Cosign(t testing.TB) string {
	t.Helper()
	if os.Getenv("SLUICE_BUILD_COSIGN") == "no" {
		if _, err := programs.Find("cosign"); err != nil {
			t.Skip(err)
		}
	}
	return program(t, "cosign")
}
