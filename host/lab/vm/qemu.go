package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Where an arm64 guest has the machine's files and the kernel's programs, and the names of their file systems.
const (
	hostDir, programsDir = "/host", "/programs"
	hostTag, programsTag = "host", "programs"
)

// onArm64 reports whether a cached kernel is Debian's for arm64.
func onArm64(kernel string) bool {
	return strings.HasPrefix(filepath.Base(filepath.Dir(kernel)), "linux-"+Arm64+"_")
}

// qemuCommand returns the command of QEMU for a kernel for arm64, with two processors and without a network. The machine's root
// is shared with the guest, read-only.
func qemuCommand(ctx context.Context, job Job, work, spec string) (*exec.Cmd, error) {
	const program = "qemu-system-aarch64"
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("%w: make deps (Debian: qemu-system-arm)", err)
	}
	if job.Tap != "" {
		return nil, errors.New("a guest for arm64 has no tap device")
	}
	folder := filepath.Dir(job.Kernel)
	start := filepath.Join(work, "initramfs")
	if err := initramfs(start, job.Init, filepath.Join(folder, modulesDir)); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-M", "virt,gic-version=3", "-cpu", "neoverse-n1", "-smp", "2", "-m", fmt.Sprint(job.Memory),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio", "-device", "virtio-rng-pci",
		"-kernel", job.Kernel, "-initrd", start, "-append", "console=ttyAMA0 quiet loglevel=2 panic=-1 "+spec)
	for tag, dir := range map[string]string{hostTag: "/", programsTag: filepath.Join(folder, programsDir)} {
		cmd.Args = append(cmd.Args, "-fsdev", "local,readonly=on,security_model=none,multidevs=remap,id="+tag+",path="+strings.ReplaceAll(dir, ",", ",,"),
			"-device", "virtio-9p-pci,fsdev="+tag+",mount_tag="+tag)
	}
	cmd.Env = os.Environ()
	return cmd, nil
}

// startOnAnyCPU starts a guest that has as many processors as the machine lets it have.
func startOnAnyCPU(cmd *exec.Cmd, _ string) (release func(), err error) {
	return func() {}, cmd.Start()
}

// enterRoot loads the modules of an initramfs, and makes the machine's files the root, with the kernel's programs over them. In
// User-Mode Linux they are the root already.
func enterRoot() error {
	modules, err := filepath.Glob(filepath.Join("/", modulesDir, "*"))
	if err != nil || len(modules) == 0 {
		return err
	}
	for _, name := range modules {
		f, err := os.Open(name)
		if err == nil {
			err = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	const root = "/root" // every initramfs has it
	for _, m := range []struct{ source, at, kind, data string }{
		{hostTag, hostDir, "9p", "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{programsTag, programsDir, "9p", "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{"root", root, "overlay", "lowerdir=" + programsDir + ":" + hostDir},
	} {
		if err := unix.Mount(m.source, m.at, m.kind, unix.MS_RDONLY, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.at, err)
		}
	}
	if err := errors.Join(os.Chdir(root), unix.Mount(root, "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return nil
}
