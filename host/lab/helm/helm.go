// Package helm builds Helm, at the version of its go.mod, to test the chart.
package helm

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/buildcache"
)

var programs = buildcache.Programs{
	Kind: "helm", Source: "host/lab/helm", Modules: []string{"program"},
	List:    map[string]buildcache.Program{"helm": {Module: "program", Package: "helm.sh/helm/v4/cmd/helm"}},
	Command: func([]string) string { return "make test-all" },
}

// Build returns the path of helm, after building it if the user's cache does not have it, which takes minutes. Modules cannot be
// downloaded from within a namespace without a network: there, it must have been built before.
func Build(ctx context.Context, log io.Writer) (path string, err error) {
	dir, err := programs.Build(ctx, log, "helm")
	return filepath.Join(dir, "helm"), err
}

// Program is Build for a test.
func Program(t testing.TB) string {
	t.Helper()
	path, err := Build(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return path
}
