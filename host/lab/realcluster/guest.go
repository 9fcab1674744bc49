package realcluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/vm"
)

const (
	// guestMemory holds the guest's disk too; MiB.
	guestMemory = 2048
	// guestPatience is how long a guest may take to import its images: half a minute on a quiet machine.
	guestPatience = 10 * time.Minute
)

// guest is a running machine with a kernel of its own.
type guest struct {
	stop  context.CancelFunc
	ended chan struct{}
	err   error // valid after ended is closed
}

// findKernel returns the path of the kernel that guests run, "" if there are none.
func (c *Cluster) findKernel() (string, error) {
	if c.config.Kernel == "" {
		return "", nil
	}
	path, err := vm.Cached(c.config.Kernel)
	if err == nil && path == "" {
		err = fmt.Errorf("kernel %s has not been built: make vm-kernels", c.config.Kernel)
	}
	return path, err
}

// bootGuest boots the node's kernel, and returns when the kubelet has been started.
func (n *Node) bootGuest(ctx context.Context, o order) error {
	token := rand.Text()
	o.Guest = &guestOrder{Addrs: n.Addrs, Token: token}
	order, err := json.Marshal(o)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "init.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.Background())
	g := &guest{stop: stop, ended: make(chan struct{})}
	n.guest = g
	p := n.cluster.config.Programs
	job := vm.Job{
		Kernel: n.cluster.kernel, Memory: guestMemory, Tap: n.tap, Args: []string{"/proc/self/exe"}, Dir: "/",
		Env: append(environment(), orderEnv+"="+string(order)), Share: []string{p.Bin, p.Debian, p.Images}, Out: log,
	}
	go func() {
		defer close(g.ended)
		defer log.Close()
		// The tap device is in the fabric's namespace.
		g.err = n.cluster.Fabric.Node.Do(func() error {
			code, err := vm.Run(running, job)
			if err == nil {
				err = fmt.Errorf("the node's program has ended with exit code %d", code)
			}
			return err
		})
	}()
	fabric := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.cluster.Fabric.Node.Fd())
	text, err := json.Marshal(access{Network: fabric, remote: remote{At: netip.AddrPortFrom(n.Addrs[0], commandPort), Token: token}})
	if err == nil {
		err = os.WriteFile(filepath.Join(n.dir, accessFile), text, 0o600)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	for {
		_, err := n.Exec(ctx, "true")
		if err == nil {
			return nil
		}
		select {
		case <-g.ended:
			return fmt.Errorf("%w\n%s", g.err, n.Logs())
		case <-ctx.Done():
			return fmt.Errorf("boot: %w\n%s", errors.Join(err, ctx.Err()), n.Logs())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// powerOff ends the guest and all its processes.
func (g *guest) powerOff() {
	g.stop()
	<-g.ended
}

// accessFile is in the folder of a node that is a guest, while it is on.
const accessFile = "guest.json"

// access is how commands reach a guest.
type access struct {
	Network string // path of the network namespace to connect from
	remote
}

// command returns a command that runs args in the guest.
func (a access) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	a.Args = args
	text, err := json.Marshal(a.remote)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+a.Network, "--", fmt.Sprintf("/proc/%d/exe", os.Getpid()))
	cmd.Env = append(environment(), remoteEnv+"="+string(text))
	return cmd, nil
}

// killRemotely sends a signal to the kubelet or containerd of a guest.
func (n *Node) killRemotely(program string, signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := n.Exec(ctx, "sh", "-c", fmt.Sprintf("kill -%d $(pidof %s)", signal, program))
	return err
}
