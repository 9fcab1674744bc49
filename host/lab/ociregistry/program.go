package ociregistry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// program is built from a module beside this package.
type program struct {
	module, pkg string
}

var (
	distribution = program{"distribution", "."}
	referrers    = program{"cosign", "./referrers"}
	cosign       = program{"cosign", "github.com/sigstore/cosign/v3/cmd/cosign"}
)

// Cosign returns the path of cosign 3, after building it if the user's cache does not have it: minutes, which make test does not take.
func Cosign(t testing.TB) string {
	t.Helper()
	return cosign.build(t)
}

var build sync.Mutex

// build returns the path of the program, after building it if the user's cache does not have it.
func (p program) build(t testing.TB) string {
	t.Helper()
	build.Lock()
	defer build.Unlock()
	source := sourceDir(t, p.module)
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(source, path)
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(user, "sluice", "registry", hex.EncodeToString(h.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(p.pkg)
	if p.pkg == "." {
		name = p.module
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if p == cosign && os.Getenv("SLUICE_BUILD_COSIGN") == "no" {
		t.Skip("cosign has not been built: make test-all builds it")
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path+".part", p.pkg)
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "PWD="+source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	if err := os.Rename(path+".part", path); err != nil {
		t.Fatal(err)
	}
	return path
}

// sourceDir finds a module from the working directory upwards.
func sourceDir(t testing.TB, module string) string {
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		dir := filepath.Join(at, "host", "lab", "ociregistry", module)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(at)
		if up == at {
			t.Fatalf("host/lab/ociregistry/%s not found in the working directory or above", module)
		}
		at = up
	}
}
