package deploy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// neededSettings are settings of bundled plugins that work with some only.
var neededSettings = map[string]string{
	"canary": `{"groups": [{"value": "canary", "percent": 5}]}`,
	"subset": `{"endpoints": 3}`,
}

// bundled returns the names of the plugins in the image.
func (i *image) bundled(t testing.TB) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(i.root, "plugins", "*.wasm"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".wasm"))
	}
	return names
}

// configOf returns a configuration with a policy for each of some plugins of the image.
func (i *image) configOf(cache string, plugins ...string) string {
	// The default memory has no room for a compiler once most of the bundled plugins are loaded, in whatever order that is.
	text := "apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nclusterCIDR: 10.244.0.0/16\npluginLimits: {memoryMiB: 512}\npluginCacheDir: " + cache + "\nplugins:\n"
	policies := "policies:\n"
	for _, name := range plugins {
		text += fmt.Sprintf("- {name: %s, file: %s}\n", name, filepath.Join(i.root, "plugins", name+".wasm"))
		policies += fmt.Sprintf("- name: %s\n  plugins: [{name: %s, settings: %s}]\n", name, name, neededSettings[name])
	}
	return text + policies
}

// TestBundledPluginsAreCompiledInTheImage: the image's program loads each of its plugins without compiling it.
func TestBundledPluginsAreCompiledInTheImage(t *testing.T) {
	img, dir := sharedImage(t), t.TempDir()
	cache := filepath.Join(dir, "cache")
	config := filepath.Join(dir, "sluice.yaml")
	if err := os.WriteFile(config, []byte(img.configOf(cache, img.bundled(t)...)), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(wantCompiled int) {
		t.Helper()
		cmd := exec.Command(filepath.Join(img.root, "sluice"), "config", "check", config)
		cmd.Env = []string{"TMPDIR=" + dir, "HOME=" + dir}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "valid") {
			t.Fatalf("%v\n%s", err, out)
		}
		if got, err := filepath.Glob(filepath.Join(cache, "*", "MANIFEST")); err != nil || len(got) != wantCompiled {
			t.Errorf("%d modules were compiled, %v, want %d", len(got), err, wantCompiled)
		}
	}
	check(0)

	// What is changed afterwards is not used.
	code := filepath.Join(img.root, "compiled")
	changed, err := filepath.Glob(filepath.Join(code, "*", "code"))
	if err != nil || len(changed) != len(img.bundled(t)) {
		t.Fatalf("%d entries for %d plugins: %v", len(changed), len(img.bundled(t)), err)
	}
	before, err := os.ReadFile(changed[0])
	if err != nil {
		t.Fatal(err)
	}
	after := slices.Clone(before)
	after[len(after)/2] ^= 1
	if err := os.WriteFile(changed[0], after, 0o644); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(changed[0], before, 0o644) }()
	check(1)
}

// BenchmarkFirstStart starts the image's program with one of its plugins on a node without a cache, and reports how long loading
// it has taken, with its self-test.
func BenchmarkFirstStart(b *testing.B) {
	dir := b.TempDir()
	img, err := buildImage(b.Context(), "..", filepath.Join(dir, "image"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range img.bundled(b) {
		b.Run(name, func(b *testing.B) {
			var took []float64 // ms
			for b.Loop() {
				took = append(took, float64(img.firstStart(b, name).Microseconds())/1000)
			}
			slices.Sort(took)
			b.ReportMetric(took[len(took)/2], "load-ms/median")
			b.ReportMetric(took[0], "load-ms/min")
		})
	}
}

// firstStart runs the image's program until it has programmed a node without Services, and returns how long it has taken to load
// a plugin.
func (i *image) firstStart(b *testing.B, plugin string) time.Duration {
	b.Helper()
	dir := b.TempDir()
	config := filepath.Join(dir, "sluice.yaml")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "manifests"), 0o700),
		os.WriteFile(config, []byte(i.configOf(filepath.Join(dir, "cache"), plugin)), 0o600)); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(i.root, "sluice"), "run", "--once", "--source", filepath.Join(dir, "manifests"), "--node", "n1",
		"--config", config, "--checkpoint", "", "--socket", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	loaded := regexp.MustCompile(`msg="loaded plugin" plugin=` + plugin + ` .*code=precompiled duration=(\S+)`).FindSubmatch(out)
	if loaded == nil {
		b.Fatalf("the plugin was not loaded, or it was compiled:\n%s", out)
	}
	took, err := time.ParseDuration(string(loaded[1]))
	if err != nil {
		b.Fatal(err)
	}
	return took
}
