package plugins

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// TestOnlyRegularFilesAreModules: others block, never end or have side effects. `sluice run`, its reloads and `config check`
// read modules here.
func TestOnlyRegularFilesAreModules(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := syscall.Mkfifo(in("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", in("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	large, err := os.Create(in("large"))
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if err := large.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(in("fifo"), in("link")); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		in("fifo"): "not a regular file", in("link"): "not a regular file", in("socket"): "not a regular file", dir: "is a directory",
		"/dev/zero": "not a regular file", "/proc/self/status": "pseudo file system", in("large"): "larger than 16 MiB", in("none"): "no such file",
	} {
		step := config.Step{Name: "p"}
		cfg := config.Default()
		cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
		cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{step}}}
		set, err := Open(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Load(t.Context(), cfg, nil); err == nil || !strings.HasPrefix(err.Error(), "plugin p: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
		set.Close(t.Context())
	}
}

// TestCacheFolderMayBeRelative: as in a configuration that is named by a relative path. Processes that compile run in another folder.
func TestCacheFolderMayBeRelative(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector maps more memory than a compiling process may have")
	}
	text, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "p.wasm")
	module := testenv.WAT(t, strings.Replace(string(text), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1), "--no-check")
	if err := os.WriteFile(file, module, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	cfg := config.Default()
	cfg.PluginCacheDir = "cache"
	cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{{Name: "p"}}}}
	set, err := Open(t.Context(), cfg, Options{Compiler: []string{"sluice", "compile-plugin"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	if _, err := set.Load(t.Context(), cfg, nil); err != nil {
		t.Error(err)
	}
}

// TestMain makes the test binary a compiler of plugins.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "compile-plugin" {
		os.Exit(wasm.CompileMain(os.Args[2:], os.Stdin, os.Stderr))
	}
	os.Exit(m.Run())
}
