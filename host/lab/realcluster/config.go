package realcluster

import (
	"fmt"
	"io"
	"net/netip"
	"regexp"

	"github.com/sluice-proxy/sluice/host/lab/realcluster/programs"
)

// Config is the configuration of a cluster.
type Config struct {
	// Name distinguishes clusters that run at the same time. Addresses are the same in each.
	Name string
	// Dir receives the cluster's files, nearly 1 GB a node, and is removed by Close. It must not be on a file system that
	// overlayfs cannot use, such as another overlayfs.
	Dir string
	// Workers is the number of nodes beside the control plane's, 1 to 8; they are in three zones in turn. 0: 3.
	Workers int
	// Kernel is the series of a test kernel (host/lab/vm), 6.12 for example, that each worker runs as a guest, with IPVS and SCTP
	// whatever this machine's has. The control plane's node then has no kubelet. "": nodes are namespaces of this machine's
	// kernel.
	Kernel string
	// Family of Pods, Services and nodes. "": IPv4.
	Family Family
	// Network is a network plugin that runs in the cluster. nil: Pods are on a bridge, and the fabric has routes to them.
	Network *programs.Network
	// Proxy runs in the cluster when Start returns. "": kube-proxy, in mode nftables. With None, CoreDNS does not become ready.
	Proxy Proxy
	// Mode is kube-proxy's: nftables, iptables or, on a kernel with IPVS, ipvs. "": nftables.
	Mode string
	// Liberal is the proxy's setting conntrack.tcpBeLiberal.
	Liberal bool
	// Install is how Start installs sluice, if it is the Proxy.
	Install Installation
	// Programs are found in the user's cache if empty.
	Programs programs.Set
	// Log receives a line for each step; nil: none.
	Log io.Writer
}

// Family is the IP family of a cluster.
type Family string

// The families of a cluster.
const (
	IPv4 Family = "ipv4"
	IPv6 Family = "ipv6"
	Dual Family = "dual" // IPv4 first
)

// Proxy is the Service proxy of a cluster.
type Proxy string

// The proxies that Start can start.
const (
	KubeProxy Proxy = "kube-proxy"
	Sluice    Proxy = "sluice" // installed in place of kube-proxy, as deploy/README.md says
	None      Proxy = "none"
)

// ControlPlane is the name of the control plane's node; workers are n1, n2 and so on.
const ControlPlane = "cp"

// nameLike is what can be a part of cgroups' and files' names.
var nameLike = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName reports whether a cluster can have a name.
func CheckName(name string) error {
	if !nameLike.MatchString(name) {
		return fmt.Errorf("name %q of a cluster: it must be of lower-case letters, digits and hyphens, 32 at most", name)
	}
	return nil
}

// Complete checks the configuration and sets defaults. Start calls it.
func (c *Config) Complete() error {
	if c.Workers == 0 {
		c.Workers = 3
	}
	if c.Family == "" {
		c.Family = IPv4
	}
	if c.Proxy == "" {
		c.Proxy = KubeProxy
	}
	if c.Mode == "" {
		c.Mode = "nftables"
	}
	if err := CheckName(c.Name); err != nil {
		return err
	}
	switch {
	case c.Dir == "":
		return fmt.Errorf("cluster %s has no folder", c.Name)
	case c.Workers < 1 || c.Workers > 8:
		return fmt.Errorf("%d workers: a cluster has 1 to 8", c.Workers)
	case c.Family != IPv4 && c.Family != IPv6 && c.Family != Dual:
		return fmt.Errorf("family %q: it must be ipv4, ipv6 or dual", c.Family)
	case c.Proxy != KubeProxy && c.Proxy != Sluice && c.Proxy != None:
		return fmt.Errorf("proxy %q: it must be kube-proxy, sluice or none", c.Proxy)
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return nil
}

// addrs returns those of the addresses that the family has.
func (f Family) addrs(v4, v6 string) (out []netip.Addr) {
	if f != IPv6 {
		out = append(out, netip.MustParseAddr(v4))
	}
	if f != IPv4 {
		out = append(out, netip.MustParseAddr(v6))
	}
	return out
}

func (f Family) ranges(v4, v6 string) (out []netip.Prefix) {
	if f != IPv6 {
		out = append(out, netip.MustParsePrefix(v4))
	}
	if f != IPv4 {
		out = append(out, netip.MustParsePrefix(v6))
	}
	return out
}

func (f Family) fabric() []netip.Addr     { return f.addrs("172.30.0.1", "fd30::1") }
func (f Family) outside() []netip.Addr    { return f.addrs("172.31.0.2", "fd31::2") }
func (f Family) pods() []netip.Prefix     { return f.ranges("10.244.0.0/16", "fd44::/56") }
func (f Family) services() []netip.Prefix { return f.ranges("10.96.0.0/16", "fd96::/112") }

// node returns the addresses of the control plane's node (0) or a worker (1 to 8).
func (f Family) node(i int) []netip.Addr {
	return f.addrs(fmt.Sprint("172.30.0.1", i), fmt.Sprint("fd30::1", i))
}

// dns returns the address of the cluster's DNS Service.
func (f Family) dns() netip.Addr { return f.addrs("10.96.0.10", "fd96::a")[0] }

// zone returns a worker's zone; the control plane's node is in the first.
func zone(i int) string { return "zone-" + string("abc"[max(i-1, 0)%3]) }
