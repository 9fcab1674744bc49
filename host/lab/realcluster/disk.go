package realcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// disk makes the node's /etc, /opt, /tmp and /var, unless it has them.
func (n *Node) disk() error {
	if err := folders(n.dir); err != nil {
		return err
	}
	etc := filepath.Join(n.dir, "etc")
	if _, err := os.Stat(etc); err == nil {
		return nil
	}
	for _, dir := range []string{"cni/net.d", "containerd", "kubernetes"} {
		if err := os.MkdirAll(filepath.Join(etc, dir), 0o755); err != nil {
			return err
		}
	}
	// What programs look up: users, protocols, shared libraries, iptables' alternatives.
	for _, name := range []string{
		"alternatives", "group", "iproute2", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "os-release", "passwd", "protocols", "services", "ssl/certs",
	} {
		if _, err := os.Lstat(filepath.Join("/etc", name)); err != nil {
			continue
		}
		cmd := exec.Command("cp", "--archive", "--parents", name, etc)
		cmd.Dir = "/etc"
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("copy /etc/%s: %w\n%s", name, err, out)
		}
	}
	files, err := n.files()
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(etc, name), data, 0o600); err != nil {
			return err
		}
	}
	for _, public := range []string{"hostname", "hosts", "resolv.conf"} {
		if err := os.Chmod(filepath.Join(etc, public), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// folders makes /opt, /tmp, /run and /var below a root.
func folders(root string) error {
	for path, mode := range map[string]fs.FileMode{
		"tmp": 0o1777, "run": 0o755, "var/tmp": 0o1777, "var/log/pods": 0o755, "var/log/containers": 0o755, "var/lib/kubelet": 0o755, "var/lib/cni": 0o755,
		"opt/cni/bin": 0o755,
	} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Chmod(at, uint32(mode.Perm())|uint32(mode&0o1000)); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", filepath.Join(root, "var/run")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// files returns the node's own files in /etc.
func (n *Node) files() (map[string][]byte, error) {
	c := n.cluster
	data := map[string]any{
		"Registry": programs.Registry, "DNS": c.config.Family.dns(), "ControlPlane": n.Name == ControlPlane,
	}
	containerd, err := text("config/containerd.toml", data)
	if err != nil {
		return nil, err
	}
	kubelet, err := text("config/kubelet.yaml", data)
	if err != nil {
		return nil, err
	}
	cert, key, err := c.ServerCertificate(n.Name, n.Addrs...)
	if err != nil {
		return nil, err
	}
	config, err := c.UserKubeconfig("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return nil, err
	}
	user, err := os.ReadFile(config)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(c.CAFile())
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"hostname": []byte(n.Name + "\n"), "hosts": fmt.Appendf(nil, "127.0.0.1 localhost\n::1 localhost\n%s %s\n", n.Addrs[0], n.Name),
		// Nothing answers there: the cluster is all that there is.
		"resolv.conf":            fmt.Appendf(nil, "nameserver %s\n", c.config.Family.fabric()[0]),
		"containerd/config.toml": containerd, "kubernetes/kubelet.yaml": kubelet, "kubernetes/kubelet.crt": cert, "kubernetes/kubelet.key": key,
		"kubernetes/kubelet.kubeconfig": user, "kubernetes/ca.crt": ca,
	}, nil
}

func (n *Node) kubeletArgs() []string {
	var addrs []string
	for _, a := range n.Addrs {
		addrs = append(addrs, a.String())
	}
	return []string{
		"--config=/etc/kubernetes/kubelet.yaml", "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig", "--hostname-override=" + n.Name,
		"--node-ip=" + strings.Join(addrs, ","), "--node-labels=topology.kubernetes.io/zone=" + n.Zone + ",topology.kubernetes.io/region=region",
	}
}
