package realcluster

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// manifestData is what the manifests are filled with.
func (c *Cluster) manifestData() map[string]any {
	pods := strings.Join(names(c.config.Family.pods()), ",")
	anyAddr := netip.IPv4Unspecified()
	if c.config.Family == IPv6 {
		anyAddr = netip.IPv6Unspecified()
	}
	return map[string]any{
		"Registry": programs.Registry, "Kubernetes": programs.Kubernetes, "API": c.Config.Host, "Pods": pods, "Any": anyAddr,
		"Mode": c.config.Mode, "Liberal": c.config.Liberal, "DNS": c.config.Family.dns(),
	}
}

// kubeProxy starts kube-proxy.
func (c *Cluster) kubeProxy(ctx context.Context) error {
	if c.config.Proxy == None {
		return nil
	}
	if err := c.apply(ctx, "manifests/kube-proxy.yaml"); err != nil {
		return err
	}
	if err := c.Rollout(ctx, "kube-system", "daemonset/kube-proxy"); err != nil {
		return err
	}
	c.logf("kube-proxy is ready")
	return nil
}

// services starts DNS, and installs sluice.
func (c *Cluster) services(ctx context.Context) error {
	if err := c.apply(ctx, "manifests/coredns.yaml"); err != nil {
		return err
	}
	if c.config.Proxy == None {
		return nil
	}
	if err := c.Rollout(ctx, "kube-system", "deployment/coredns"); err != nil {
		return err
	}
	c.logf("CoreDNS is ready")
	if c.config.Proxy == KubeProxy {
		return nil
	}
	return c.Install(ctx, c.config.Install)
}

// Rollout waits until a Deployment or DaemonSet, named kind/name, has been rolled out.
func (c *Cluster) Rollout(ctx context.Context, namespace, name string) error {
	_, err := c.Kubectl(ctx, "", "-n", namespace, "rollout", "status", name, "--timeout=180s")
	if err != nil {
		pods, _ := c.Kubectl(ctx, "", "-n", namespace, "describe", "pods")
		return fmt.Errorf("%w\n%s", err, pods[max(0, len(pods)-16<<10):])
	}
	return nil
}

func (c *Cluster) apply(ctx context.Context, manifest string) error {
	objects, err := text(manifest, c.manifestData())
	if err != nil {
		return err
	}
	return c.Apply(ctx, string(objects))
}

func names[T fmt.Stringer](list []T) (out []string) {
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}
