package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// startOnCPU starts a kernel with all its processes on one CPU. A guest has one CPU anyway, and each of its system calls switches
// between two of the host's processes: on two CPUs each switch wakes the other CPU, which makes guests five times slower.
//
// The CPU is the first that no other guest runs on, as files in the folder say, which are locked until release is called.
func startOnCPU(cmd *exec.Cmd, folder string) (release func(), err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	release = func() {}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return release, fmt.Errorf("read the CPU affinity: %w", err)
	}
	cpu := -1
	for i := range len(all) * 64 {
		if !all.IsSet(i) {
			continue
		}
		if cpu = i; lockCPU(folder, i, &release) {
			break // otherwise the last one is shared
		}
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return release, fmt.Errorf("set the CPU affinity: %w", err)
	}
	err = cmd.Start()
	if back := unix.SchedSetaffinity(0, &all); back != nil && err == nil {
		err = fmt.Errorf("restore the CPU affinity: %w", back)
	}
	return release, err
}

// lockCPU reports whether no other guest runs on a CPU, and sets release.
func lockCPU(folder string, cpu int, release *func()) bool {
	f, err := os.OpenFile(filepath.Join(folder, fmt.Sprintf("cpu-%d", cpu)), os.O_RDONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return false
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return false
	}
	*release = func() { f.Close() }
	return true
}
