package realcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Node is a node of the cluster. Its methods must not be called concurrently with Start, Stop and Reset.
type Node struct {
	Name, Zone string
	Addrs      []netip.Addr

	cluster *Cluster
	dir     string           // /etc, /opt, /var and /tmp, which outlast a boot; /etc and /var/log of a guest
	host    *testnet.Host    // nil: the node is off
	lab     *testnet.Lab     // its network namespace
	init    *testnet.Program // process 1
	tap     string           // "": it is not a guest
	guest   *guest
}

// Host is the node's network namespace, nil while the node is off. Of a guest, only its addresses are here.
func (n *Node) Host() *testnet.Host { return n.host }

// pidFile has the process ID of process 1 while the node is on.
func (n *Node) pidFile() string { return filepath.Join(n.dir, "init.pid") }

// connect makes a network namespace or what a guest needs in place of it, and the link to the fabric.
func (n *Node) connect() (err error) {
	if n.cluster.kernel != "" && n.Name != ControlPlane {
		n.host, n.tap, err = n.cluster.Fabric.AddGuest(n.Name, n.Addrs...)
		return err
	}
	if n.lab, err = n.cluster.Fabric.AddNode(n.Name, nil, n.Addrs...); err == nil {
		n.host = n.lab.Node
	}
	return err
}

// Stop powers the node off: its processes are killed at once, /run and its network namespace are lost. Its disk stays, which is
// /etc, /opt, /tmp and /var; of a guest, /etc and /var/log. On the control plane's node, the control plane goes on until Close,
// without a network.
func (n *Node) Stop() error {
	var errs []error
	if n.host != nil { // first, as power is lost: no process says goodbye
		errs = append(errs, n.cluster.Fabric.Detach(n.host))
		n.host = nil
	}
	if n.guest != nil {
		n.guest.powerOff()
		n.guest = nil
		errs = append(errs, os.Remove(filepath.Join(n.dir, accessFile)))
	}
	if n.init != nil {
		n.init.Kill()
		n.init = nil
		errs = append(errs, os.Remove(n.pidFile()))
	}
	// A kubelet that finds the cgroups of lost containers spends a minute on them.
	for _, g := range n.cluster.cgroups {
		errs = append(errs, removeCgroup(filepath.Join(g.Path, cgroupName(n.cluster.config.Name, n.Name))))
	}
	if n.lab != nil {
		n.lab.Close()
		n.lab = nil
	}
	return errors.Join(errs...)
}

// Start boots a node that is off, and returns when its kubelet has been started.
func (n *Node) Start(ctx context.Context) error {
	if n.host != nil {
		return fmt.Errorf("node %s is on", n.Name)
	}
	if n.Name == ControlPlane {
		return fmt.Errorf("node %s: its network namespace is the control plane's, and cannot be replaced", n.Name)
	}
	if err := n.connect(); err != nil {
		return err
	}
	if err := n.boot(ctx); err != nil {
		return err
	}
	return n.podNetwork(ctx)
}

// Reset powers the node off and on.
func (n *Node) Reset(ctx context.Context) error {
	if n.Name == ControlPlane {
		return fmt.Errorf("node %s runs the control plane", n.Name)
	}
	return errors.Join(n.Stop(), n.Start(ctx))
}

// Command returns a command that runs in all namespaces of the node or in the guest, with the programs of containerd, Kubernetes,
// nftables and conntrack in its path.
func (n *Node) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	return Command(ctx, n.cluster.config.Dir, n.Name, args...)
}

// Command is Node.Command for a cluster of another process, by its folder.
func Command(ctx context.Context, dir, node string, args ...string) (*exec.Cmd, error) {
	cmd, err := command(ctx, filepath.Join(dir, "nodes", node), args...)
	if err != nil {
		return nil, fmt.Errorf("node %s does not exist or is off: %w", node, err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // nsenter waits for a child
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd, nil
}

func command(ctx context.Context, dir string, args ...string) (*exec.Cmd, error) {
	if text, err := os.ReadFile(filepath.Join(dir, accessFile)); err == nil {
		var a access
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, err
		}
		return a.command(ctx, args...)
	}
	pid, err := os.ReadFile(filepath.Join(dir, "init.pid"))
	if err != nil {
		return nil, err
	}
	enter := []string{"--target", string(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = environment()
	return cmd, nil
}

// Exec runs a command on the node, as Command does, and returns its output. The error contains its standard error.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return n.exec(ctx, nil, args...)
}

func (n *Node) exec(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd, err := n.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("node %s: %s: %w\n%s", n.Name, strings.Join(args, " "), err, &errs)
	}
	return out.String(), nil
}

// Import imports the images of an OCI archive, under its own names or, if base is not empty, as base:TAG.
func (n *Node) Import(ctx context.Context, archive, base string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	args := []string{"ctr", "-n", "k8s.io", "images", "import"}
	if base != "" {
		args = append(args, "--base-name", base)
	}
	_, err = n.exec(ctx, f, append(args, "-")...)
	return err
}

// PID returns the process ID, as this machine sees it, of a program that process 1 of the node runs: kubelet or containerd.
func (n *Node) PID(program string) (int, error) {
	if n.init == nil {
		return 0, fmt.Errorf("node %s is off, or a guest", n.Name)
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		open, shut := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if open < 0 || shut < open {
			continue
		}
		var state string
		_, _ = fmt.Sscan(string(stat[:open]), &pid)
		_, _ = fmt.Sscan(string(stat[shut+1:]), &state, &parent)
		if parent == n.init.PID() && string(stat[open+1:shut]) == program && state != "Z" {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("node %s: %s does not run", n.Name, program)
}

// Kill sends a signal to kubelet or containerd. Process 1 starts a program that has ended again after a second.
func (n *Node) Kill(program string, signal syscall.Signal) error {
	if n.guest != nil {
		return n.killRemotely(program, signal)
	}
	pid, err := n.PID(program)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, signal)
}

// Logs returns the end of the logs of process 1, containerd and kubelet.
func (n *Node) Logs() string {
	var b strings.Builder
	for _, name := range []string{"init.log", "var/log/containerd.log", "var/log/kubelet.log"} {
		text, err := os.ReadFile(filepath.Join(n.dir, name))
		if err == nil {
			fmt.Fprintf(&b, "--- %s: %s\n%s\n", n.Name, name, text[max(0, len(text)-4<<10):])
		}
	}
	return b.String()
}
