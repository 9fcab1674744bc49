package programs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// debianPackages are those of the nodes, and those in images.
func debianPackages() []string {
	return slices.Concat(
		[]string{"containerd", "runc", "containernetworking-plugins"},
		[]string{"bash", "bind9-dnsutils", "bind9-host", "busybox", "conntrack", "curl", "dash", "iperf", "iproute2", "ipset", "iptables", "libc-bin", "netbase", "netcat-openbsd", "nftables", "runit",
			"wget"})
}

// extract downloads packages of this machine's release with all that they depend on, and extracts them. apt works on lists and a
// status of its own.
func extract(ctx context.Context, w io.Writer, to string) error {
	for _, name := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("the nodes of a real cluster need packages of Debian: %w", err)
		}
	}
	fmt.Fprintln(w, "extracting packages of Debian")
	work, err := os.MkdirTemp(filepath.Dir(to), "apt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	debs := filepath.Join(work, "cache", "archives")
	for _, dir := range []string{filepath.Join(debs, "partial"), filepath.Join(work, "state", "lists", "partial")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	status := filepath.Join(work, "status") // nothing is installed, so everything is fetched
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return err
	}
	apt := func(args ...string) error {
		return run(ctx, "apt-get", slices.Concat([]string{"-qq", "-o", "Dir::State=" + filepath.Join(work, "state"), "-o", "Dir::State::status=" + status,
			"-o", "Dir::Cache=" + filepath.Join(work, "cache"), "-o", "APT::Sandbox::User=root"}, args)...)
	}
	if err := errors.Join(apt("update"), apt(slices.Concat([]string{"install", "-y", "--download-only", "--no-install-recommends"}, debianPackages())...)); err != nil {
		return err
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(to, "usr", dir), 0o755), os.Symlink("usr/"+dir, filepath.Join(to, dir))); err != nil {
			return err
		}
	}
	archives, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range archives {
		if err := run(ctx, "bash", "-o", "pipefail", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"`, "extract", deb, to); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}
