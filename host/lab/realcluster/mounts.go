package realcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls that the kubelet sets, and that are not a namespace's: it leaves alone those that have its values, which the node's
// /proc/sys shows.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
	"kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// mounts makes the node's file systems in its mount namespace.
func (o order) mounts() error {
	// What the machine unmounts is unmounted here too, and nothing that is mounted here appears there.
	if err := mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, m := range [][3]string{{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"tmpfs", "/sys/fs/cgroup", "tmpfs"}} {
		if err := mount(m[0], m[1], m[2], 0, ""); err != nil {
			return err
		}
	}
	for _, g := range o.Cgroups {
		name, options := g.Hierarchy, g.Hierarchy
		if named, ok := strings.CutPrefix(name, "name="); ok {
			name, options = named, "none,"+options
		}
		at := filepath.Join("/sys/fs/cgroup", name)
		if err := os.Mkdir(at, 0o755); err != nil {
			return err
		}
		if err := mount("cgroup", at, "cgroup", 0, options); err != nil {
			return err
		}
	}
	run := filepath.Join(o.Dir, "run")
	if err := mount("tmpfs", run, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := o.programs(filepath.Join(run, filepath.Base(programsDir))); err != nil {
		return err
	}
	for _, dir := range []string{"lock", "cni/networks", "netns"} {
		if err := os.MkdirAll(filepath.Join(run, dir), 0o755); err != nil {
			return err
		}
	}
	if err := fixSysctls(filepath.Join(run, "sysctl")); err != nil {
		return err
	}
	// The node's folders may be in one that is replaced.
	dirs := []string{"etc", "opt", "var", "tmp", "run"}
	fds := map[string]int{}
	for _, dir := range dirs {
		fd, err := unix.Open(filepath.Join(o.Dir, dir), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the node's %s: %w", dir, err)
		}
		fds[dir] = fd
	}
	for _, dir := range dirs {
		if err := mount(fmt.Sprint("/proc/self/fd/", fds[dir]), "/"+dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		_ = unix.Close(fds[dir])
	}
	return mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// programs shows the programs to the node at a folder.
func (o order) programs(at string) error {
	for name, from := range map[string]string{"bin": o.Programs.Bin, "debian": o.Programs.Debian, "images": o.Programs.Images} {
		to := filepath.Join(at, name)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	return nil
}

func fixSysctls(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, value := range sysctls {
		to := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(to); errors.Is(err, os.ErrNotExist) {
			continue
		}
		from := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(from, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

func mount(from, to, kind string, flags uintptr, options string) error {
	if err := unix.Mount(from, to, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from+kind, to, err)
	}
	return nil
}
