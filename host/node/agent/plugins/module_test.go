package plugins

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
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

// baseModule returns the file of a plugin.
func baseModule(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "p.wasm")
	module := testenv.WAT(t, strings.Replace(string(text), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2))", 1), "--no-check")
	if err := os.WriteFile(file, module, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCacheFolderMayBeRelative: as in a configuration that is named by a relative path. Processes that compile run in another
// folder.
func TestCacheFolderMayBeRelative(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector maps more memory than a compiling process may have")
	}
	file := baseModule(t)
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

// TestMain makes the test binary a compiler of plugins and a process of one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "compile-plugin" {
		os.Exit(wasm.CompileMain(os.Args[2:], os.Stdin, os.Stderr))
	}
	if len(os.Args) > 1 && os.Args[1] == "compile-later" {
		os.Exit(compileLater(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "plugin-process" {
		os.Exit(wasm.ProcessMain(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

// TestReplacedPluginThatHangsIsNotWaitedFor: its process has been stopped during a call, and is killed for its silence seconds
// later.
func TestReplacedPluginThatHangsIsNotWaitedFor(t *testing.T) {
	if testenv.Race {
		t.Skip("processes of plugins need a build without race detector")
	}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: baseModule(t)}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{{Name: "p"}}}}
	set, err := Open(t.Context(), cfg, Options{Process: []string{"sluice", "plugin-process"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	others := testenv.Children(t)
	if _, err := set.Load(t.Context(), cfg, nil); err != nil {
		t.Fatal(err)
	}
	p, err := set.Get("p")
	if err != nil {
		t.Fatal(err)
	}
	pids := slices.DeleteFunc(testenv.Children(t), func(pid int) bool { return slices.Contains(others, pid) })
	if len(pids) != 1 || syscall.Kill(pids[0], syscall.SIGSTOP) != nil {
		t.Fatalf("processes %v", pids)
	}
	messages := func() (sum int) { // a counter at the begin of the memory that each process shares
		files, _ := filepath.Glob("/proc/self/fd/*")
		for _, file := range files {
			if path, _ := os.Readlink(file); strings.HasPrefix(path, "/memfd:sluice-plugin") {
				f, err := os.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				var count [2]byte
				_, _ = f.ReadAt(count[:], 0)
				f.Close()
				sum += int(count[0]) + 256*int(count[1])
			}
		}
		return sum
	}
	before := messages()
	decided := make(chan error)
	req := wasm.Samples()[0].Request
	go func() {
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		decided <- p.Decide(req, &resp)
	}()
	testenv.Eventually(t, "the call", func() bool { return messages() != before })
	cfg.Policies = nil
	if _, err := set.Load(t.Context(), cfg, nil); err != nil {
		t.Fatal(err)
	}
	set.CloseRetired()
	select {
	case err := <-decided:
		t.Fatalf("waited for the call: %v", err)
	default:
	}
	_ = syscall.Kill(pids[0], syscall.SIGKILL)
	<-decided
	set.Close(t.Context())
}
