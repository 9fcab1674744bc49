package plugins

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// compileLater compiles a module when there is a file that the module names.
func compileLater(args []string) int {
	module, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 1
	}
	if name := regexp.MustCompile("wait for (/[^ ]*) ").FindSubmatch(module); name != nil {
		for {
			if _, err := os.Stat(string(name[1]) + "/go"); err == nil {
				break
			}
			time.Sleep(time.Millisecond) // pace of a module that takes long
		}
	}
	return wasm.CompileMain(args, bytes.NewReader(module), os.Stderr)
}

// TestLoadsThatTakeLongDelayNoOther: more of them than are loaded at the same time. When they have ended, the next Load has their
// results.
func TestLoadsThatTakeLongDelayNoOther(t *testing.T) {
	if testenv.Race {
		t.Skip("processes of plugins need a build without race detector")
	}
	const slow = maxLoads + 1
	dir := t.TempDir()
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	base, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	for n := range slow + 1 {
		name := fmt.Sprintf("p%d", n)
		text := fmt.Sprintf(`(func (export "wait for %s %d"))`, dir, n)
		if n == slow {
			name, text = "p", ""
		}
		file := filepath.Join(t.TempDir(), name+".wasm")
		module := testenv.WAT(t, strings.Replace(string(base), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2)) "+text, 1), "--no-check")
		if err := os.WriteFile(file, module, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Plugins = append(cfg.Plugins, config.Plugin{Name: name, File: file})
		cfg.Policies = append(cfg.Policies, config.Policy{Name: name, Plugins: []config.Step{{Name: name}}})
	}
	if pulling, failed := because(Pulling, errors.New("p")), errors.New("q"); OnlyLoading(errors.Join(pulling, failed)) || OnlyLoading(failed) || !OnlyLoading(pulling) {
		t.Error("loads that have failed are not told from those that go on")
	}
	alone := *cfg
	alone.Plugins, alone.Policies = cfg.Plugins[slow:], cfg.Policies[slow:]
	openPlugin(t, &alone) // its code is in the cache
	set, err := Open(t.Context(), cfg, Options{Compiler: []string{"sluice", "compile-later"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	ended := make(chan bool, slow)
	set.LoadInBackground(func() { ended <- true })
	set.patience = 50 * time.Millisecond
	for range 2 { // those that go on are not begun again
		_, err := set.Load(t.Context(), cfg, nil)
		if err == nil || strings.Count(err.Error(), "others do not wait for it") != slow || !OnlyLoading(err) {
			t.Fatal(err)
		}
		if _, err := set.Get("p"); err != nil {
			t.Error(err)
		}
		if _, err := set.Get("p0"); err != errLoading {
			t.Error(err)
		}
		if len(set.loads) != slow {
			t.Errorf("%d loads go on", len(set.loads))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range slow {
		<-ended
	}
	changed := 0
	if _, err := set.Load(t.Context(), cfg, func() { changed++ }); err != nil || changed != slow || len(set.loads) != 0 {
		t.Errorf("%d plugins are new, %d loads go on: %v", changed, len(set.loads), err)
	}
	for _, p := range cfg.Plugins {
		if _, err := set.Get(p.Name); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
}

// TestLoadThatIsNoLongerWantedEnds, and another module takes its place.
func TestLoadThatIsNoLongerWantedEnds(t *testing.T) {
	if testenv.Race {
		t.Skip("processes of plugins need a build without race detector")
	}
	base, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "p.wasm")
	write := func(text string) {
		t.Helper()
		module := testenv.WAT(t, strings.Replace(string(base), ";; EVIL", "(func $evil (param i32 i32 i64) (result i64) (local.get 2)) "+text, 1), "--no-check")
		if err := os.WriteFile(file, module, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config.Default()
	cfg.PluginCacheDir = testenv.PluginCache(t)
	cfg.Plugins = []config.Plugin{{Name: "p", File: file}}
	cfg.Policies = []config.Policy{{Name: "q", Plugins: []config.Step{{Name: "p"}}}}
	set, err := Open(t.Context(), cfg, Options{Compiler: []string{"sluice", "compile-later"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(t.Context())
	set.LoadInBackground(func() {})
	set.patience = 50 * time.Millisecond
	load := func() error {
		_, err := set.Load(t.Context(), cfg, nil)
		return err
	}
	slow := fmt.Sprintf(`(func (export "wait for %s never"))`, dir)
	if write(slow); load() == nil {
		t.Fatal("loaded")
	}
	first := set.loads["p"]
	write("")
	testenv.Eventually(t, "the other module", func() bool { return load() == nil })
	if <-first.done; first.err == nil {
		t.Error("the first load has not been ended")
	}
	if write(slow); load() == nil {
		t.Fatal("loaded")
	}
	second := set.loads["p"]
	cfg.Policies = nil
	if err := load(); err != nil || len(set.loads) > 0 {
		t.Errorf("%v, %d loads go on", err, len(set.loads))
	}
	if <-second.done; second.err == nil {
		t.Error("the load that nobody wants has not been ended")
	}
}
