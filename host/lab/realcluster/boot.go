package realcluster

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed config manifests
var texts embed.FS

// text fills a template.
func text(name string, data any) ([]byte, error) {
	t, err := template.ParseFS(texts, name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Option("missingkey=error").Execute(&b, data)
	return b.Bytes(), err
}

// boot starts the node, and returns when its process 1 has started the kubelet.
func (n *Node) boot(ctx context.Context) error {
	if err := n.disk(); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	o := order{Name: n.Name, Dir: n.dir, Programs: n.cluster.config.Programs, Kubelet: n.kubeletArgs()}
	if n.tap != "" {
		if err := n.bootGuest(ctx, o); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
		return nil
	}
	groups, err := makeCgroups(n.cluster.cgroups, cgroupName(n.cluster.config.Name, n.Name))
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	o.Cgroups = groups
	order, err := json.Marshal(o)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "init.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, started, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer started.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = "node-" + n.Name
	cmd.Env = append(environment(), orderEnv+"="+string(order))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{started}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
	}
	if n.init, err = n.Host().Start(cmd); err != nil {
		return fmt.Errorf("node %s: %w", n.Name, err)
	}
	started.Close()
	if err := os.WriteFile(n.pidFile(), []byte(strconv.Itoa(n.init.PID())), 0o600); err != nil {
		return err
	}
	if err := ready.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	if _, err := ready.Read(make([]byte, 1)); err != nil { // io.EOF: it has ended
		return fmt.Errorf("node %s: start containerd and kubelet: %w\n%s", n.Name, errors.Join(err, ctx.Err()), n.Logs())
	}
	return nil
}

// podNetwork configures the fabric's routes to the Pod ranges that the controller manager has given the node, and CNI for them,
// unless a network plugin does one or both. It waits until the kubelet has registered the node.
func (n *Node) podNetwork(ctx context.Context) error {
	var ranges []string
	err := poll(ctx, "Pod ranges of node "+n.Name, func() error {
		node, err := n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && len(node.Spec.PodCIDRs) == 0 {
			err = errors.New("it has none yet")
		}
		if err != nil {
			return err
		}
		ranges = node.Spec.PodCIDRs
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.Logs())
	}
	plugin := n.cluster.config.Network
	if plugin != nil && !plugin.Routed {
		return nil
	}
	var defaults []string
	for _, r := range ranges {
		p, err := netip.ParsePrefix(r)
		if err != nil {
			return err
		}
		if err := n.cluster.Fabric.Route(p, n.Host()); err != nil {
			return err
		}
		if p.Addr().Is4() {
			defaults = append(defaults, "0.0.0.0/0")
		} else {
			defaults = append(defaults, "::/0")
		}
	}
	if plugin != nil {
		return nil
	}
	conf, err := text("config/pods.conflist", map[string]any{"PodCIDRs": ranges, "Routes": defaults})
	if err != nil {
		return err
	}
	// On the node: a guest's containerd does not see that this machine has written a file.
	_, err = n.exec(ctx, bytes.NewReader(conf), "tee", "/etc/cni/net.d/10-pods.conflist")
	return err
}
