package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
)

// compiled returns the entries of compiled plugins for a platform, and what the program has to know of them. The compiler is
// built for the platform, so it runs here if this machine can run programs of that platform: itself, or with QEMU.
func (b *builder) compiled(ctx context.Context, p platform) (files []oci.File, pairs string, err error) {
	runner, err := runnerOf(p)
	if err != nil {
		return nil, "", err
	}
	compiler := filepath.Join(b.temp, "precompile-"+p.arch)
	_, err = b.run(ctx, []string{"CGO_ENABLED=0", "GOOS=" + p.os, "GOARCH=" + p.arch},
		"build", "-trimpath", "-buildvcs=false", "-o", compiler, "./deploy/image/precompile")
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", p, err)
	}
	modules, err := filepath.Glob(filepath.Join(b.temp, "*.wasm"))
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(b.temp, "compiled-"+p.arch)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, "", err
	}
	argv := slices.Concat(runner, []string{compiler, dir}, modules)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, "", fmt.Errorf("%s: compile the plugins: %w\n%s", p, err, stderr.Bytes())
	}
	files, err = filesIn(dir, "compiled")
	return files, strings.TrimSpace(string(out)), err
}

// emulators are the command lines of QEMU that run programs of the architectures for which plugins can be compiled. -cpu max has
// all features of processors that the engine asks for.
func emulators() map[string][]string {
	return map[string][]string{"amd64": {"qemu-x86_64", "-cpu", "max"}, "arm64": {"qemu-aarch64", "-cpu", "max"}}
}

// runnerOf returns the command line that runs a program of a platform, which is its last argument: nothing for this machine's.
func runnerOf(p platform) ([]string, error) {
	emulator, ok := emulators()[p.arch]
	switch {
	case !ok:
		return nil, fmt.Errorf("-compiled %s: there is no compiler for %s", p, p.arch)
	case p.os == runtime.GOOS && p.arch == runtime.GOARCH:
		return nil, nil
	}
	if _, err := exec.LookPath(emulator[0]); err != nil {
		return nil, fmt.Errorf("-compiled %s: its programs do not run on this machine: install %s (Debian: qemu-user), or build the image without compiled plugins for it", p, emulator[0])
	}
	return emulator, nil
}

// filesIn returns the regular files in a folder, as files below another one.
func filesIn(dir, to string) (files []oci.File, err error) {
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files = append(files, oci.File{Name: path.Join(to, filepath.ToSlash(rel)), Mode: 0o644, Body: body})
		return nil
	})
	return files, err
}
