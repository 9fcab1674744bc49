package realcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/vm"
)

const (
	// orderEnv has the order, as JSON, in the environment of process 1 of a node.
	orderEnv = "SLUICE_REALCLUSTER_NODE"
	// programsDir is where a node sees the programs.
	programsDir = "/run/realcluster"
	// readyFd is the file that process 1 writes to when it has started the kubelet.
	readyFd = 3
)

// order is what process 1 of a node is to do.
type order struct {
	Name, Dir string
	Cgroups   []cgroup
	Programs  programs.Set
	Kubelet   []string
	Joined    bool        // it is in its cgroups, and their namespace; or it has a whole machine, with its file systems
	Guest     *guestOrder // for the guest's program, which starts process 1
}

// Enter must be the first call of a program that uses this package: it does not return in process 1 of a node, in a guest, and in
// commands.
func Enter() {
	vm.Main()
	enterRemote()
	text := os.Getenv(orderEnv)
	if text == "" {
		return
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil && o.Guest != nil {
		err = o.runGuest()
	}
	if err == nil && !o.Joined {
		err = o.join()
	}
	if err == nil {
		err = o.run()
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// join moves this process to the node's cgroups and runs it again in a namespace of them, which every thread of it is in then.
func (o order) join() error {
	for _, g := range o.Cgroups {
		if err := os.WriteFile(filepath.Join(g.Path, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	o.Joined = true
	again, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := os.Setenv(orderEnv, string(again)); err != nil {
		return err
	}
	runtime.LockOSThread()
	// It is a thread's, and that which calls exec takes the place of the first one.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the parent: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

func (o order) run() error {
	unix.CloseOnExec(readyFd)
	if err := os.Unsetenv(orderEnv); err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("node-"+o.Name), 0) // for ps
	if err := unix.Sethostname([]byte(o.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if len(o.Cgroups) > 0 {
		if err := o.mounts(); err != nil {
			return err
		}
	}
	unix.Umask(0o022)
	if err := plugins(); err != nil {
		return err
	}
	containerd := &daemon{name: "containerd", args: []string{"--config", "/etc/containerd/config.toml"}}
	if err := containerd.start(); err != nil {
		return err
	}
	if err := o.images(); err != nil {
		return err
	}
	kubelet := &daemon{name: "kubelet", args: o.Kubelet}
	if err := kubelet.start(); err != nil {
		return err
	}
	if _, err := unix.Write(readyFd, []byte{1}); err != nil {
		return fmt.Errorf("report that the kubelet has been started: %w", err)
	}
	_ = unix.Close(readyFd)
	return reap(containerd, kubelet)
}

// plugins shows Debian's CNI plugins where network plugins put theirs.
func plugins() error {
	const from, to = programsDir + "/debian/usr/lib/cni", "/opt/cni/bin"
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		if made := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); !errors.Is(made, fs.ErrExist) {
			err = errors.Join(err, made)
		}
	}
	return err
}

// images waits for containerd and imports the images that it does not have.
func (o order) images() error {
	for end := time.Now().Add(patience); exec.Command("ctr", "version").Run() != nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("containerd does not answer")
		}
	}
	archives, err := filepath.Glob(filepath.Join(programsDir, "images", "*.tar"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		done := filepath.Join("/var/lib", "imported-"+filepath.Base(a))
		if _, err := os.Stat(done); err == nil {
			continue
		}
		if out, err := exec.Command("ctr", "-n", "k8s.io", "images", "import", a).CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w\n%s", filepath.Base(a), err, out)
		}
		if err := os.WriteFile(done, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// daemon is a program that runs as long as the node.
type daemon struct {
	name string
	args []string
	pid  int
}

func (d *daemon) start() error {
	log, err := os.OpenFile(filepath.Join("/var/log", d.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.name, d.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	d.pid = cmd.Process.Pid
	return cmd.Process.Release() // reap waits for it
}

// reap waits for all children, as process 1 must, and starts daemons again that have ended.
func reap(daemons ...*daemon) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for children: %w", err)
		}
		for _, d := range daemons {
			if d.pid != pid {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s %s has ended: %#x\n", time.Now().UTC().Format(time.TimeOnly), d.name, uint32(status))
			time.Sleep(time.Second)
			if err := d.start(); err != nil {
				return err
			}
		}
	}
}

// environment is that of the programs on a node.
func environment() []string {
	var path []string
	for _, dir := range []string{"bin", "debian/usr/sbin", "debian/usr/bin", "debian/sbin", "debian/bin"} {
		path = append(path, filepath.Join(programsDir, dir))
	}
	return []string{
		"PATH=" + strings.Join(append(path, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"), ":"),
		"HOME=/root", "LANG=C.UTF-8",
	}
}
