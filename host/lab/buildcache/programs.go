package buildcache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Programs are built from folders of Go modules, most of them separate from sluice's, and kept under a hash of all files in these
// folders, the compiler and its flags.
type Programs struct {
	Kind    string   // the folder in the cache
	Source  string   // a folder in the work tree
	Modules []string // folders in Source, with all that the key depends on
	Version string   // of Kubernetes, which its programs report; "": none is part of it
	List    map[string]Program
	Command func(missing []string) string // what builds them, for Missing
}

// Program is a folder in Source, and a package as the go command in that folder names it.
type Program struct {
	Module  string
	Package string
	Test    bool // the package's tests are the program
	Cgo     bool // it is partly in C
}

// flags returns the arguments of go build and go test for all modules.
func (p Programs) flags() []string {
	ld := []string{"-s", "-w"}
	if minor := strings.Split(strings.TrimPrefix(p.Version, "v"), "."); p.Version != "" {
		for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
			ld = append(ld, "-X", pkg+".gitVersion="+p.Version, "-X", pkg+".gitMajor="+minor[0], "-X", pkg+".gitMinor="+minor[1])
		}
	}
	return []string{"-trimpath", "-buildvcs=false", "-ldflags", strings.Join(ld, " ")}
}

// Find returns the directory that has all named programs, or a *Missing error.
func (p Programs) Find(names ...string) (string, error) {
	dir, err := p.Dir()
	if err != nil {
		return "", err
	}
	missing := &Missing{Dir: dir}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			missing.Names = append(missing.Names, n)
		}
	}
	if len(missing.Names) > 0 {
		missing.Build = p.Command(missing.Names)
		return "", missing
	}
	return dir, nil
}

// Dir returns the directory for the present state of the modules, whether it exists or not.
func (p Programs) Dir() (string, error) {
	src, err := p.SourceDir()
	if err != nil {
		return "", err
	}
	key := sha256.New()
	fmt.Fprintf(key, "%s %s/%s %q\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, p.flags())
	for _, module := range p.Modules {
		err := filepath.WalkDir(filepath.Join(src, module), func(path string, d fs.DirEntry, err error) error { // by name
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(src, path)
			fmt.Fprintf(key, "%s %d\n%s", filepath.ToSlash(name), len(text), text)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("read module %s: %w", module, err)
		}
	}
	return Folder(p.Kind, key)
}

// SourceDir finds Source from the working directory upwards.
func (p Programs) SourceDir() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		dir := filepath.Join(at, filepath.FromSlash(p.Source))
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(p.Modules[0]))); err == nil {
			return dir, nil
		}
		up := filepath.Dir(at)
		if up == at {
			return "", fmt.Errorf("%s not found in the working directory or above: run this in sluice's work tree", p.Source)
		}
		at = up
	}
}

// Build builds the named programs that are missing, reports progress on w, and returns their directory. Concurrent builds
// are serialized. A program is renamed into place when it is complete, so an interrupted build leaves none.
func (p Programs) Build(ctx context.Context, w io.Writer, names ...string) (string, error) {
	for _, n := range names {
		if _, ok := p.List[n]; !ok {
			return "", fmt.Errorf("build %s: no such program", n)
		}
	}
	dir, err := p.Dir()
	if err != nil {
		return "", err
	}
	done, err := Open(ctx, w, dir)
	if err != nil {
		return "", err
	}
	defer done()
	src, err := p.SourceDir()
	if err != nil {
		return "", err
	}
	var missing *Missing
	if _, err := p.Find(names...); errors.As(err, &missing) {
		for i, n := range missing.Names {
			fmt.Fprintf(w, "building %s (%d of %d; minutes the first time)\n", n, i+1, len(missing.Names))
			if err := p.build(ctx, w, src, p.List[n], filepath.Join(dir, n)); err != nil {
				return "", fmt.Errorf("build %s: %w", n, err)
			}
		}
	} else if err != nil {
		return "", err
	}
	return dir, nil
}

func (p Programs) build(ctx context.Context, w io.Writer, src string, program Program, to string) error {
	part := to + ".part"
	defer os.Remove(part)
	verb := []string{"build"}
	if program.Test {
		verb = []string{"test", "-c", "-vet=off"}
	}
	cmd := exec.CommandContext(ctx, "go", slices.Concat(verb, p.flags(), []string{"-o", part, program.Package})...)
	cmd.Dir = filepath.Join(src, program.Module)
	cgo := "CGO_ENABLED=0"
	if program.Cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), cgo, "GOWORK=off", "GOFLAGS=-mod=readonly", "PWD="+cmd.Dir)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(part, to)
}
