package realcluster

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// guestOrder is what a guest is to do beside the order.
type guestOrder struct {
	Addrs []netip.Addr
	Token string // of commands
}

// runGuest is the guest's program: it joins the network, starts the node's processes, which have the whole machine here, and then
// runs commands.
func (o order) runGuest() error {
	if err := testnet.Join("vec0", o.Guest.Addrs...); err != nil {
		return err
	}
	if err := o.guestMounts(); err != nil {
		return err
	}
	guest := o.Guest
	o.Guest, o.Joined = nil, true
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ready, started, err := os.Pipe()
	if err != nil {
		return err
	}
	node := exec.Command("/proc/self/exe")
	node.Args[0] = "node-" + o.Name
	node.Env = append(environment(), orderEnv+"="+string(text))
	node.Stdout, node.Stderr, node.ExtraFiles = os.Stdout, os.Stderr, []*os.File{started}
	if err := node.Start(); err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	started.Close()
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("start containerd and kubelet: %w", node.Wait())
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(guest.Addrs[0], commandPort).String())
	if err != nil {
		return fmt.Errorf("accept commands: %w", err)
	}
	go func() {
		err := node.Wait()
		fmt.Fprintln(os.Stderr, "the node's process 1 has ended:", err)
		l.Close()
	}()
	return serveCommands(l, guest.Token)
}

// guestMounts makes file systems that a machine has, and the node's own. Beside its settings and logs, which are the host's, a
// guest's disk is in its memory.
func (o order) guestMounts() error {
	for _, dir := range []string{"/dev/pts", "/dev/shm", "/dev/mqueue", "/run/lock", "/run/cni/networks", "/run/netns"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, m := range [][4]string{
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", ""},
		{"devpts", "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", ""},
		{"mqueue", "/dev/mqueue", "mqueue", ""},
		{"tmpfs", "/sys/devices/system/cpu", "tmpfs", ""},
		{"hostfs", "/etc", "hostfs", filepath.Join(o.Dir, "etc")},
		{"tmpfs", "/opt", "tmpfs", ""},
		{"tmpfs", "/var", "tmpfs", "size=90%"},
	} {
		if err := mount(m[0], m[1], m[2], 0, m[3]); err != nil {
			return err
		}
	}
	if err := folders("/"); err != nil {
		return err
	}
	if err := mount("hostfs", "/var/log", "hostfs", 0, filepath.Join(o.Dir, "var/log")); err != nil {
		return err
	}
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil && !os.IsExist(err) {
		return err
	}
	if err := describeCPU("/sys/devices/system/cpu"); err != nil {
		return err
	}
	if err := o.programs(programsDir); err != nil {
		return err
	}
	return mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// describeCPU writes what the kubelet reads about CPUs, and User-Mode Linux does not say: there is one.
func describeCPU(dir string) error {
	for name, value := range map[string]int{
		"cpu0/online": 1, "cpu0/topology/core_id": 0, "cpu0/topology/physical_package_id": 0, "cpu0/cpufreq/cpuinfo_max_freq": 1_000_000,
		"online": 0, "possible": 0, "present": 0,
	} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(at, []byte(strconv.Itoa(value)+"\n"), 0o444); err != nil {
			return err
		}
	}
	return nil
}
