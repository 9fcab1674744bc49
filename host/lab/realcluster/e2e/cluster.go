package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/balancer"
	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// nodePorts is a setting of both proxies, so that they serve NodePorts on loopback addresses too.
const nodePorts = "nodePortAddresses: [primary, localhost]"

// localNodePorts returns kube-proxy's configuration with NodePorts on loopback addresses. In mode nftables, a feature serves
// them; others have none.
func localNodePorts(mode, config string) string {
	config += "\n" + nodePorts + "\n"
	if mode == nftables {
		config += "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\n"
	}
	return config
}

// load imports the suite's images on all nodes, and brings kube-proxy to the suite's release.
func load(ctx context.Context, c *realcluster.Cluster, suite programs.Suite, mode string) error {
	images, err := filepath.Glob(filepath.Join(suite.Images, "*.tar"))
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		for _, image := range images {
			if err := n.Import(ctx, image, ""); err != nil {
				return err
			}
		}
	}
	maps := c.Client.CoreV1().ConfigMaps("kube-system")
	config, err := maps.Get(ctx, "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return err
	}
	config.Data["config.conf"] = localNodePorts(mode, config.Data["config.conf"])
	if _, err := maps.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "", "-n", "kube-system", "set", "image", "daemonset/kube-proxy", "kube-proxy="+programs.SuiteKubeProxy); err != nil {
		return err
	}
	return c.Rollout(ctx, "kube-system", "daemonset/kube-proxy")
}

// balance runs a load balancer until stop is called.
func balance(ctx context.Context, c *realcluster.Cluster) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	b := &balancer.Balancer{
		Client:  c.Client,
		Network: network{c},
		Ranges:  []netip.Prefix{netip.MustParsePrefix("172.29.0.0/24"), netip.MustParsePrefix("fd29::/112")},
		Log:     os.Stderr,
	}
	done := make(chan struct{})
	go func() {
		if err := b.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		close(done)
	}()
	return func() { cancel(); <-done }
}

// network is the fabric of a cluster, for its load balancer.
type network struct{ c *realcluster.Cluster }

func (n network) Spread(to netip.Addr, nodes []string) error {
	var via []*testnet.Host
	for _, name := range nodes {
		if node := n.c.Node(name); node != nil && node.Host() != nil {
			via = append(via, node.Host())
		}
	}
	return n.c.Fabric.Spread(to, via...)
}

func (n network) Healthy(ctx context.Context, name string, port int32) bool {
	node := n.c.Node(name)
	if node == nil {
		return false
	}
	at := netip.AddrPortFrom(node.Addrs[0], uint16(port))
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.c.Outside.Dial(ctx, network, at)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/healthz", nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
