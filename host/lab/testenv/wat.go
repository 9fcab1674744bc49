package testenv

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// assembled are the modules that this process has asked for, by flags and text.
var assembled sync.Map

// WAT assembles a WebAssembly module from the text format, with a manifest (hosts.Describe), with additional flags for wat2wasm.
func WAT(t testing.TB, text string, flags ...string) []byte {
	t.Helper()
	key := strings.Join(flags, " ") + "\n" + text
	if module, ok := assembled.Load(key); ok {
		return bytes.Clone(module.([]byte))
	}
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
	module := hosts.Describe(text, b)
	assembled.Store(key, bytes.Clone(module))
	return module
}
