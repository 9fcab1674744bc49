package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// WAT assembles a WebAssembly module from the text format, with a manifest (hosts.Describe), with additional flags for wat2wasm.
func WAT(t testing.TB, text string, flags ...string) []byte {
	t.Helper()
	RequireProgram(t, "wat2wasm", "wabt")
	out := filepath.Join(t.TempDir(), "out.wasm")
	cmd := exec.Command("wat2wasm", append(flags, "-", "-o", out)...)
	cmd.Stdin = strings.NewReader(text)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wat2wasm: %v\n%s", err, msg)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return hosts.Describe(text, b)
}
