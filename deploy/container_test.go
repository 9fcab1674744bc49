package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// containerSpec is the environment variable that makes the test binary the first process of a container.
const containerSpec = "SLUICE_DEPLOY_CONTAINER"

// container implements the parts of a container runtime that the manifests use: a root from the image, optionally read-only,
// mounts, capabilities, and a subset of the seccomp profile RuntimeDefault.
type container struct {
	Root     string // the unpacked image
	ReadOnly bool
	// Privileged leaves /proc/sys and /sys writable, and all capabilities; Capabilities then counts for nothing.
	Privileged bool
	// WritableProc leaves /proc/sys writable alone.
	WritableProc    bool
	Capabilities    []int
	NoNewPrivileges bool
	Seccomp         bool // with NoNewPrivileges
	UID             int
	Mounts          []mount
	Args            []string
	Env             []string
}

type mount struct {
	From, To string
	ReadOnly bool
}

// command returns the container's process, not started. It runs in the network namespace of the thread that starts it.
func (c container) command() (*exec.Cmd, error) {
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = []string{containerSpec + "=" + string(spec)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC}
	return cmd, nil
}

// enter sets up the container and executes its program. It returns only on error.
func enter(spec string) error {
	runtime.LockOSThread()
	var c container
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	// The kubelet's value for a Pod of system-node-critical. Without the right to change it, it stays as it is.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-997"), 0); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := c.mount(); err != nil {
		return err
	}
	if err := c.drop(); err != nil {
		return err
	}
	return fmt.Errorf("exec %s: %w", c.Args[0], unix.Exec(c.Args[0], c.Args, c.Env))
}

func (c container) mount() error {
	at := func(path string) string { return filepath.Join(c.Root, path) }
	do := func(what string, err error) error {
		if err != nil {
			return fmt.Errorf("mount %s: %w", what, err)
		}
		return nil
	}
	if err := do("/ private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		return err
	}
	if err := do("root", unix.Mount(c.Root, c.Root, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return err
	}
	for _, dir := range []string{"proc", "sys", "dev"} { // a runtime makes what is missing
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			return err
		}
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	sys := uintptr(safe)
	if !c.Privileged {
		sys |= unix.MS_RDONLY
	}
	if err := errors.Join(
		do("/proc", unix.Mount("proc", at("proc"), "proc", safe, "")),
		do("/sys", unix.Mount("sysfs", at("sys"), "sysfs", sys, "")),
		do("/dev", unix.Mount("tmpfs", at("dev"), "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755")),
		os.WriteFile(at("dev/null"), nil, 0o666),
	); err != nil {
		return err
	}
	mounts := append([]mount{{From: "/dev/null", To: "/dev/null"}}, c.Mounts...)
	if !c.Privileged && !c.WritableProc {
		mounts = append(mounts, mount{From: at("proc/sys"), To: "/proc/sys", ReadOnly: true})
	}
	for _, m := range mounts {
		info, err := os.Stat(m.From)
		if err == nil && info.IsDir() {
			err = os.MkdirAll(at(m.To), 0o755)
		}
		if err != nil {
			return err
		}
		if err := do(m.To, bind(m.From, at(m.To), m.ReadOnly)); err != nil {
			return err
		}
	}
	if err := unix.Chdir(c.Root); err != nil {
		return err
	}
	if err := do("the new root", unix.PivotRoot(".", ".")); err != nil {
		return err
	}
	if err := do("the old root away", unix.Unmount(".", unix.MNT_DETACH)); err != nil {
		return err
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if !c.ReadOnly {
		return nil
	}
	return do("/ read-only", remountReadOnly("/"))
}

func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return remountReadOnly(to)
}

// remountReadOnly keeps the mount flags that a user namespace must not clear.
func remountReadOnly(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	keep := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RELATIME | unix.MS_NOATIME)
	return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, "")
}

// drop drops all capabilities that the container does not have. After exec, root has those of the bounding set.
func (c container) drop() error {
	if !c.Privileged {
		for bit := 0; ; bit++ {
			if _, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0); err != nil {
				break // beyond the last that this kernel has
			}
			if has(c.Capabilities, bit) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", bit, err)
			}
		}
	}
	if c.UID != 0 {
		if err := unix.Setresuid(c.UID, c.UID, c.UID); err != nil {
			return fmt.Errorf("uid %d: %w", c.UID, err)
		}
	} else if !c.Privileged {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		for _, bit := range c.Capabilities {
			data[bit/32].Permitted |= 1 << (bit % 32)
			data[bit/32].Effective |= 1 << (bit % 32)
		}
		if err := unix.Capset(&header, &data[0]); err != nil {
			return fmt.Errorf("capset: %w", err)
		}
	}
	if !c.NoNewPrivileges {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if c.Seccomp {
		return refuse()
	}
	return nil
}

func has(bits []int, bit int) bool {
	for _, b := range bits {
		if b == bit {
			return true
		}
	}
	return false
}

// status returns a field of /proc/PID/status.
func status(pid int, field string) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
