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
		cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-s -w",
			"-o", filepath.Join(dir, path.Base(p)+".wasm"), "github.com/sluice-proxy/sluice/"+p)
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", p, err, out)
		}
	}
	return dir
}
