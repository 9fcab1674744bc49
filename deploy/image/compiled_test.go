package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// smallBuilder returns a builder with a small plugin.
func smallBuilder(t *testing.T) *builder {
	t.Helper()
	b, err := newBuilder(context.Background(), "v0.0.0-test", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	text := strings.TrimSpace(hosts.Guest("good"))
	text = text[:len(text)-1] + "(func " + strings.Repeat("(drop (memory.grow (i32.const 0)))", 500) + "))" // so that its code has pages
	module := testenv.WAT(t, text, "--no-check")
	if err := os.WriteFile(filepath.Join(b.temp, "small.wasm"), module, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPluginsAreCompiledForEachArchitecture: by a compiler for the architecture, which uses the code that it has written when it
// runs again.
func TestPluginsAreCompiledForEachArchitecture(t *testing.T) {
	testenv.RequireProgram(t, "qemu-x86_64", "qemu-user")
	b := smallBuilder(t)
	pairs := map[string]string{}
	for _, p := range []platform{{"linux", "amd64"}, {"linux", "arm64"}} {
		files, pair, err := b.compiled(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		entry, _, _ := strings.Cut(pair, ":")
		var code string
		for _, f := range files {
			if !strings.HasPrefix(f.Name, "compiled/"+entry+"/") || f.Mode != 0o644 {
				t.Errorf("%s: file %s, mode %#o", p, f.Name, f.Mode)
			}
			if strings.HasSuffix(f.Name, "/code") {
				code = string(f.Body)
			}
		}
		if _, err := wasm.ParsePrecompiled("/compiled", pair); err != nil || len(files) < 5 || code == "" || slices.Contains([]string{pairs["amd64"], pairs["arm64"]}, pair) {
			t.Errorf("%s: %d files, %q, %v", p, len(files), pair, err)
		}
		pairs[p.arch] = pair
		argv := []string{filepath.Join(b.temp, "precompile-"+p.arch), filepath.Join(b.temp, "compiled-"+p.arch), filepath.Join(b.temp, "small.wasm")}
		if p.arch != runtime.GOARCH {
			argv = append(emulators()[p.arch], argv...)
		}
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != pair {
			t.Errorf("%s: the second run writes %s, %v, want %s", p, out, err, pair)
		}
	}

	// An emulated compiler writes the same code as one that runs on the machine.
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	argv := append(emulators()[runtime.GOARCH], filepath.Join(b.temp, "precompile-"+runtime.GOARCH), dir, filepath.Join(b.temp, "small.wasm"))
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != pairs[runtime.GOARCH] {
		t.Errorf("emulated: %s, %v, want %s", out, err, pairs[runtime.GOARCH])
	}
}

func TestPluginsCannotBeCompiledForEveryArchitecture(t *testing.T) {
	b := smallBuilder(t)
	if _, _, err := b.compiled(t.Context(), platform{"linux", "riscv64"}); err == nil || !strings.Contains(err.Error(), "there is no compiler for riscv64") {
		t.Errorf("riscv64: %v", err)
	}
	t.Setenv("PATH", filepath.Dir(mustLookPath(t, "go")))
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if _, _, err := b.compiled(t.Context(), platform{"linux", other}); err == nil || !strings.Contains(err.Error(), "qemu-user") {
		t.Errorf("without QEMU: %v", err)
	}
}

func mustLookPath(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
