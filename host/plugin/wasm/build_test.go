package wasm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/confine"
)

var _ policy.Plugin = (*Plugin)(nil)

// built caches the guests that the tests of this process build.
type built struct {
	mu   sync.Mutex
	dir  string
	done map[string][]byte
}

var guests built

// inProcesses makes newHost run plugins in processes.
var inProcesses bool

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if child := childCommands()[os.Args[1]]; child != nil {
			os.Exit(child(os.Args[2:]))
		}
	}
	dir, err := os.MkdirTemp("", "sluice-wasm-test-")
	if err = errors.Join(err, confine.Descriptors()); err != nil {
		panic(err)
	}
	guests = built{dir: dir, done: map[string][]byte{}}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func (b *built) get(t testing.TB, name, folder string, build func(out string) *exec.Cmd) []byte {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if w := b.done[name]; w != nil {
		return w
	}
	out := filepath.Join(b.dir, name+".wasm")
	cmd := build(out)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, msg)
	}
	if err := testenv.Embed(out, folder); err != nil {
		t.Fatal(err)
	}
	w, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	b.done[name] = w
	return w
}

// goGuest builds a Go guest from its folder.
func goGuest(t testing.TB, folder string) []byte {
	t.Helper()
	return testenv.Plugin(t, path.Join("host/plugin/wasm", folder))
}

// cGuest builds a C guest from its file.
func cGuest(t testing.TB, file string) []byte {
	t.Helper()
	return guests.get(t, filepath.Base(file), filepath.Dir(file), func(out string) *exec.Cmd { return testenv.Clang(t, file, out) })
}

// noCache in Options.CacheDir disables the cache that the tests of this process share, as compiling a Go guest takes a second.
const noCache = "none"

// newHost returns a host whose deadlines are the longest there are, unless limits say otherwise: tests of fuel must pass on a
// busy machine and with the race detector.
func newHost(t testing.TB, opts Options) *Host {
	t.Helper()
	for _, limit := range []*time.Duration{&opts.Limits.InitTime, &opts.Limits.ConfigureTime, &opts.Limits.DecideTime} {
		if *limit == 0 {
			*limit = time.Second
		}
	}
	switch opts.CacheDir {
	case "":
		opts.CacheDir = filepath.Join(guests.dir, "cache")
	case noCache:
		opts.CacheDir = ""
	}
	if inProcesses && opts.Process == nil {
		opts.Process = childCommand("plugin")
	}
	h, err := New(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func load(t testing.TB, h *Host, module []byte, settings string) *Plugin {
	t.Helper()
	p, err := h.Load(context.Background(), "test", module, []byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func textLog(w interface{ Write([]byte) (int, error) }) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
