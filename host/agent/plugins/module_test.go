package plugins

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/policy"
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
		step := policy.Step{Plugin: "p"}
		cfg := config.Default()
		cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
		cfg.Policies = []policy.Policy{{Name: "q", Steps: []policy.Step{step}}}
		set, err := Open(t.Context(), cfg, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Load(t.Context(), cfg, nil); err == nil || !strings.HasPrefix(err.Error(), "plugin p: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", file, err, want)
		}
		set.Close(t.Context())
	}
}
