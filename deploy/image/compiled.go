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
	"strings"
)

// compiled returns the entries of compiled plugins for a platform, and what the program has to know of them. The compiler is built for the
// platform, so it runs here if this machine can run programs of that platform: itself, or with QEMU.
func (b *builder) compiled(ctx context.Context, p platform) (files []file, pairs string, err error) {
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
	argv := append([]string{compiler, dir}, modules...)
	if p.os != runtime.GOOS || p.arch != runtime.GOARCH {
		emulator, err := emulatorOf(p)
		if err != nil {
			return nil, "", err
		}
		argv = append([]string{emulator}, argv...)
	}
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

// emulatorOf returns the program of QEMU that runs programs of a platform.
func emulatorOf(p platform) (string, error) {
	names := map[string]string{"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}
	name, ok := names[p.arch]
	if !ok {
		return "", fmt.Errorf("-compiled %s: there is no compiler for %s", p, p.arch)
	}
	found, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("-compiled %s: programs of %s do not run on this machine: install %s (Debian: qemu-user), or build the image without compiled plugins for it", p, p.arch, name)
	}
	return found, nil
}

// filesIn returns the regular files in a folder, as files below another one.
func filesIn(dir, to string) (files []file, err error) {
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
		files = append(files, file{name: path.Join(to, filepath.ToSlash(rel)), mode: 0o644, body: body})
		return nil
	})
	return files, err
}
