// Package helm builds Helm, at the version of its go.mod, to test the chart.
package helm

import (
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/buildcache"
)

var programs = buildcache.Programs{
	Kind: "helm", Source: "host/lab/helm", Modules: []string{"program"},
	List:    map[string]buildcache.Program{"helm": {Module: "program", Package: "helm.sh/helm/v4/cmd/helm"}},
	Command: func([]string) string { return "make test-all" },
}

// Program returns the path of helm, after building it if the user's cache does not have it, which takes minutes.
func Program(t testing.TB) string {
	t.Helper()
	dir, err := programs.Build(t.Context(), t.Output(), "helm")
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "helm")
}
