package testenv

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
)

// Plugins compiles packages of this module, such as "plugins/zone-spill", to WebAssembly and returns the directory with
// the modules, each named for its package. Go's build cache makes that cheap from the second time on.
func Plugins(t testing.TB, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range packages {
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s -w",
			"-o", filepath.Join(dir, path.Base(p)+".wasm"), "github.com/sluice-proxy/sluice/"+p)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", p, err, out)
		}
	}
	return dir
}

// PluginCache returns the directory for compiled plugins that all tests share, in the user's cache: compiling a Go plugin takes more than a
// second of CPU time. sluice verifies and bounds what is in it. Tests of compilation have a directory of their own.
func PluginCache(t testing.TB) string {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(user, "sluice", "test-plugins")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
