package testcluster

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

func (c *Cluster) managerArgs(kubeconfig string) []string {
	file := func(name string) string { return filepath.Join(c.dir, name) }
	args := []string{
		"--kubeconfig=" + kubeconfig, "--use-service-account-credentials", "--service-account-private-key-file=" + file("tokens.key"),
		"--root-ca-file=" + file("ca.crt"), "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-service-endpoint-syncs=10",
	}
	if len(c.options.Pods) == 0 {
		return append(args, "--controllers="+strings.Join(slices.Concat(controllers(), c.options.Controllers), ","))
	}
	return append(args, "--allocate-node-cidrs", "--cluster-cidr="+join(c.options.Pods), "--service-cluster-ip-range="+join(c.services),
		"--cluster-signing-cert-file="+file("ca.crt"), "--cluster-signing-key-file="+file("ca.key"))
}

// join returns ranges separated by commas.
func join(ranges []netip.Prefix) string {
	var out []string
	for _, p := range ranges {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}
