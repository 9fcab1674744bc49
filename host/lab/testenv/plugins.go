package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// Plugins compiles packages of this module, such as "plugins/locality", to WebAssembly and returns the directory with
// the modules, each named for its package.
func Plugins(t testing.TB, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range packages {
		if err := os.WriteFile(filepath.Join(dir, path.Base(p)+".wasm"), Plugin(t, p), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// modules are those that this process has asked for, by package: to find out that a file is up to date takes go build a third of
// a second.
var modules sync.Map

// Plugin compiles a package of this module, such as "plugins/locality", to WebAssembly and returns the module.
func Plugin(t testing.TB, pkg string) []byte {
	t.Helper()
	if module, ok := modules.Load(pkg); ok {
		return bytes.Clone(module.([]byte))
	}
	file := filepath.Join(t.TempDir(), "plugin.wasm")
	err := buildPlugin(userCache(t, "test-modules"), pkg, file)
	if err == nil {
		err = Embed(file, filepath.Join(root(t), pkg))
	}
	module, readErr := os.ReadFile(file)
	if err = errors.Join(err, readErr); err != nil {
		t.Fatalf("build %s: %v", pkg, err)
	}
	modules.Store(pkg, bytes.Clone(module))
	return module
}

// buildPlugin builds a package in a file of the folder cache, which it copies. Go's build cache has compiled packages, but no
// linked programs: go build links again unless the file exists and is up to date. A lock makes other tests wait that build the
// same package.
func buildPlugin(cache, pkg, to string) error {
	built := filepath.Join(cache, strings.ReplaceAll(pkg, "/", "_")+".wasm")
	lock, err := os.OpenFile(built+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags=-s -w", "-o", built, "github.com/sluice-proxy/sluice/"+pkg)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	module, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return os.WriteFile(to, module, 0o644)
}

// Embed puts the manifest of the plugin in a folder into its module.
func Embed(module, dir string) error {
	file, err := manifest.FindFile(dir)
	if err != nil {
		return err
	}
	return manifest.EmbedFile(module, file)
}

// PluginCache returns the directory for compiled plugins that all tests share, in the user's cache: compiling a Go plugin takes
// more than a second of CPU time. sluice verifies and bounds what is in it: there is room for the plugins of this module. Tests
// with many other modules, and those of compilation, have a directory of their own.
func PluginCache(t testing.TB) string {
	t.Helper()
	return userCache(t, "test-plugins")
}

// userCache creates a folder in the user's cache.
func userCache(t testing.TB, name string) string {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(user, "sluice", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
