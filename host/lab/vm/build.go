package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Build returns the path of a cached kernel of the series, after building it if necessary. A build from Debian's source
// package takes some 8 CPU minutes and temporarily 2 GB; Debian's kernel for arm64 is unpacked, in half a minute. Concurrent
// callers wait for one build. Progress is written to out. A cached kernel is used whatever version apt offers, unless newest is
// set.
func Build(ctx context.Context, series string, newest bool, out io.Writer) (string, error) {
	if path, err := Cached(series); err != nil || path != "" && !newest {
		return path, err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	b := &builder{out: out, env: os.Environ()}
	tools, build, source := []string{"gcc", "ld", "make", "bc", "perl", "tar", "xz"}, b.build, "linux-source-"+series
	if series == Arm64 {
		tools, build, source = nil, b.unpack, "linux-image-"+series
	}
	if err := b.requireTools(append(tools, "apt-get", "apt-cache", "dpkg")...); err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	unlock, err := b.lock(ctx, filepath.Join(cache, "lock-"+series))
	if err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	defer unlock()
	if path, err := Cached(series); err != nil || path != "" && !newest {
		return path, err // by another process, meanwhile
	}
	if b.done, err = os.MkdirTemp(cache, "building-"); err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	defer os.RemoveAll(b.done)
	parent := b.done
	if !plainPath(parent) {
		parent = "/var/tmp" // the kernel's Makefile takes no path with spaces or colons
	}
	if b.dir, err = os.MkdirTemp(parent, "sluice-vm-"); err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	defer os.RemoveAll(b.dir)
	if series == Arm64 {
		if err := b.useArm64(ctx); err != nil {
			return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
		}
	}
	version, err := b.candidateVersion(ctx, source)
	if err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	final := filepath.Join(cache, keyOf(series, version))
	if _, err := os.Stat(filepath.Join(final, "linux")); err == nil {
		return filepath.Join(final, "linux"), nil
	}
	if err := build(ctx, series, version); err != nil {
		return "", fmt.Errorf("vm: build kernel %s (%s): %w", series, version, err)
	}
	if err := os.Rename(filepath.Join(b.done, "kernel"), final); err != nil {
		return "", fmt.Errorf("vm: build kernel %s: %w", series, err)
	}
	return filepath.Join(final, "linux"), nil
}

type builder struct {
	out  io.Writer
	env  []string
	apt  []string // options of apt
	dir  string   // where it is built
	done string   // where the result is put together, in the cache
}

// requireTools returns an error that lists Debian's packages of the tools that are missing.
func (b *builder) requireTools(tools ...string) error {
	packages := map[string]string{"apt-cache": "apt", "apt-get": "apt", "ld": "binutils", "xz": "xz-utils"}
	var missing []string
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, cmp.Or(packages[tool], tool))
		}
	}
	if _, err := os.Stat("/usr/include/stdio.h"); err != nil && slices.Contains(tools, "gcc") {
		missing = append(missing, "libc6-dev")
	}
	if len(missing) > 0 {
		return fmt.Errorf("these packages of Debian are missing: apt-get install %s", strings.Join(missing, " "))
	}
	return nil
}

// lock waits until no other process builds the series. The lock ends with the process.
func (b *builder) lock(ctx context.Context, path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintf(b.out, "vm: another process is building it: waiting for %s\n", path)
		for errors.Is(err, unix.EWOULDBLOCK) {
			select {
			case <-ctx.Done():
				err = context.Cause(ctx)
			case <-time.After(200 * time.Millisecond):
				err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// candidateVersion returns the version of a package that apt would install.
func (b *builder) candidateVersion(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-cache", slices.Concat(b.apt, []string{"policy", name})...).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache policy %s: %w", name, err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Candidate: "); ok && v != "(none)" {
			return v, nil
		}
	}
	return "", fmt.Errorf("apt knows no package %s: it is in Debian 12 with its security updates; apt-get update, as root?", name)
}

// download unpacks packages in a folder. They are not installed, which needs no root.
func (b *builder) download(ctx context.Context, to string, packages ...string) error {
	args := slices.Concat([]string{"apt-get", "-qq", "-o", "APT::Sandbox::User=root"}, b.apt, []string{"download"}, packages)
	if err := b.run(ctx, args...); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(b.dir, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) != len(packages) {
		return fmt.Errorf("apt-get download of %v gave %v", packages, debs)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, deb := range debs {
		if err := b.run(ctx, "dpkg", "-x", deb, to); err != nil {
			return err
		}
		if err := os.Remove(deb); err != nil {
			return err
		}
	}
	return nil
}

// build leaves the kernel and its whole configuration in the folder "kernel" of done.
func (b *builder) build(ctx context.Context, series, version string) error {
	begin := time.Now()
	source := "linux-source-" + series
	wanted := []string{source + "=" + version}
	for _, tool := range []string{"flex", "bison", "m4"} {
		if _, err := exec.LookPath(tool); err != nil {
			wanted = append(wanted, tool)
		}
	}
	if err := b.download(ctx, filepath.Join(b.dir, "root"), wanted...); err != nil {
		return err
	}
	usr := filepath.Join(b.dir, "root", "usr")
	b.env = append(b.env, "PATH="+filepath.Join(usr, "bin")+":"+os.Getenv("PATH"),
		"KBUILD_BUILD_USER=sluice", "KBUILD_BUILD_HOST=vm", "KBUILD_BUILD_TIMESTAMP=1970-01-01", "LC_ALL=C")
	if _, err := os.Stat(filepath.Join(usr, "bin", "m4")); err == nil {
		b.env = append(b.env, "M4="+filepath.Join(usr, "bin", "m4"))
	}
	if _, err := os.Stat(filepath.Join(usr, "bin", "bison")); err == nil {
		b.env = append(b.env, "BISON_PKGDATADIR="+filepath.Join(usr, "share", "bison"))
	}
	kernel := filepath.Join(b.done, "kernel")
	for _, dir := range []string{filepath.Join(b.dir, "src"), filepath.Join(b.dir, "um"), kernel} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := b.run(ctx, "tar", "-C", "src", "--strip-components=1", "-xJf", filepath.Join(usr, "src", source+".tar.xz")); err != nil {
		return err
	}
	if err := patch(filepath.Join(b.dir, "src"), patches(series)); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "fragment"), config(series), 0o644); err != nil {
		return err
	}
	um := []string{"make", "-s", "-C", "src", "ARCH=um", "O=" + filepath.Join(b.dir, "um")}
	if err := b.run(ctx, append(um, "allnoconfig", "KCONFIG_ALLCONFIG="+filepath.Join(b.dir, "fragment"))...); err != nil {
		return err
	}
	made, err := os.ReadFile(filepath.Join(b.dir, "um", ".config"))
	if err != nil {
		return err
	}
	if err := checkOptions(series, made); err != nil {
		return err
	}
	jobs := fmt.Sprintf("-j%d", runtime.NumCPU())
	if err := b.run(ctx, append([]string{"nice", "-n", "10"}, append(um, jobs, "linux")...)...); err != nil {
		return err
	}
	for from, to := range map[string]string{"linux": "linux", ".config": "config"} {
		if err := b.run(ctx, "cp", filepath.Join(b.dir, "um", from), filepath.Join(kernel, to)); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "vm: kernel %s (%s) built in %s\n", series, version, time.Since(begin).Round(time.Second))
	return nil
}

// run runs a step in the builder's folder. The error of a failed step contains its output.
func (b *builder) run(ctx context.Context, args ...string) error {
	fmt.Fprintf(b.out, "vm: %s\n", strings.ReplaceAll(strings.Join(args, " "), b.dir+"/", ""))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = b.dir, b.env
	// A process group of its own, so that cancelling also kills make's children.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, output.Bytes())
	}
	return nil
}

// checkOptions returns an error unless the kernel's configuration has every line of ours. kconfig silently drops options
// that it does not know or whose dependencies are missing.
func checkOptions(series string, made []byte) error {
	has := map[string]bool{}
	for s := bufio.NewScanner(bytes.NewReader(made)); s.Scan(); {
		has[s.Text()] = true
	}
	var missing []string
	for _, line := range options(series) {
		if !has[line] {
			missing = append(missing, line)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the kernel's configuration dropped %s", strings.Join(missing, ", "))
	}
	return nil
}
