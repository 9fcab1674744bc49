package config

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/spelling"
)

// Modes of detecting Pod sources: by the cluster's range, by the Node's ranges (spec.podCIDRs), by the bridge of the Pods, or
// by the name prefix of their interfaces.
const (
	ClusterCIDR         = "ClusterCIDR"
	NodeCIDR            = "NodeCIDR"
	BridgeInterface     = "BridgeInterface"
	InterfaceNamePrefix = "InterfaceNamePrefix"
)

// DetectLocal identifies the input interfaces of connections from Pods.
type DetectLocal struct {
	BridgeInterface     string // for BridgeInterface
	InterfaceNamePrefix string // for InterfaceNamePrefix
}

// Conntrack contains the conntrack settings made at startup. 0 keeps the kernel's value.
type Conntrack struct {
	MaxPerCore            int // entries per CPU; 0 also disables Min
	Min                   int // minimum number of entries
	TCPBeLiberal          bool
	TCPEstablishedTimeout time.Duration // whole seconds, like the other timeouts
	TCPCloseWaitTimeout   time.Duration
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
}

func defaultConntrack() Conntrack {
	return Conntrack{
		MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour}
}

// Logging configures the log.
type Logging struct {
	Format    string // LogText or LogJSON
	Verbosity int    // 1 or higher: debug level
}

// Log formats.
const (
	LogText = "text"
	LogJSON = "json"
)

type detectEntry struct {
	BridgeInterface     string `json:"bridgeInterface"`
	InterfaceNamePrefix string `json:"interfaceNamePrefix"`
}

type conntrackEntry struct {
	MaxPerCore            *int32 `json:"maxPerCore"`
	Min                   *int32 `json:"min"`
	TCPBeLiberal          bool   `json:"tcpBeLiberal"`
	TCPEstablishedTimeout string `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   string `json:"tcpCloseWaitTimeout"`
	UDPTimeout            string `json:"udpTimeout"`
	UDPStreamTimeout      string `json:"udpStreamTimeout"`
}

type loggingEntry struct {
	Format    string `json:"format"`
	Verbosity int32  `json:"verbosity"`
}

// node parses the fields about this node: its address, Pod detection, kernel settings and logging.
func (p *parser) node(f *configFile, c *Config) {
	c.BindAddress = p.address("bindAddress", f.BindAddress)
	c.BindAddressHardFail = f.BindAddressFail
	p.detectLocal(f, c)
	p.conntrack(&f.Conntrack, &c.Conntrack)
	p.serviceLimits(&f.ServiceLimits, &c.ServiceLimits)
	c.EndpointCIDRs = p.cidrs("endpointCIDRs", f.EndpointCIDRs)
	c.NoMasqueradeCIDRs = p.cidrs("noMasqueradeCIDRs", f.NoMasqueradeCIDRs)
	if adj := f.OOMScoreAdj; adj != nil {
		if *adj < -1000 || *adj > 1000 {
			p.errorf("oomScoreAdj", "%d is not between -1000 and 1000", *adj)
		}
		c.OOMScoreAdj, c.OOMScoreAdjSet = int(*adj), true
	}
	switch f.Logging.Format {
	case "":
	case LogText, LogJSON:
		c.Logging.Format = f.Logging.Format
	default:
		p.errorf("logging.format", "%q: must be %s or %s", f.Logging.Format, LogText, LogJSON)
	}
	if c.Logging.Verbosity = int(f.Logging.Verbosity); c.Logging.Verbosity < 0 {
		p.errorf("logging.verbosity", "%d is negative", c.Logging.Verbosity)
	}
}

// address parses a unicast address. As in kube-proxy, the unspecified addresses mean the default.
func (p *parser) address(path, s string) netip.Addr {
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		p.errorf(path, "%q is not an IP address", s)
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		p.errorf(path, "%s is not a unicast address", a)
	case !a.IsUnspecified():
		return a.Unmap()
	}
	return netip.Addr{}
}

func (p *parser) detectLocal(f *configFile, c *Config) {
	modes := []string{ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix}
	if f.DetectLocalMode != "" {
		c.DetectLocalMode = f.DetectLocalMode
	}
	if !slices.Contains(modes, c.DetectLocalMode) {
		p.errorf("detectLocalMode", "%q: must be %s%s", c.DetectLocalMode, strings.Join(modes, ", "), spelling.DidYouMean(c.DetectLocalMode, modes))
	}
	c.DetectLocal = DetectLocal(f.DetectLocal)
	for _, i := range []struct{ path, name, mode string }{
		{"detectLocal.bridgeInterface", c.DetectLocal.BridgeInterface, BridgeInterface},
		{"detectLocal.interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix, InterfaceNamePrefix},
	} {
		switch {
		case i.name == "" && c.DetectLocalMode == i.mode:
			p.errorf(i.path, "required with detectLocalMode %s", i.mode)
		case i.name != "" && !isInterface(i.name):
			p.errorf(i.path, "%q is not an interface name: 1 to 15 printable ASCII characters except '/', '*', '#' and spaces", i.name)
		}
	}
}

// seconds parses a timeout in whole seconds, as the kernel stores it.
func (p *parser) seconds(path, from string, into *time.Duration) {
	p.duration(path, from, 0, into)
	switch seconds := *into / time.Second; {
	case *into%time.Second != 0:
		p.errorf(path, "%s is not a whole number of seconds", *into)
	case seconds > maxSeconds:
		p.errorf(path, "%s exceeds the kernel's maximum of %ds", *into, maxSeconds)
	}
}

// isInterface reports whether s is a valid interface name for Linux and contains no pattern characters.
func isInterface(s string) bool {
	return len(s) <= 15 && s != "." && s != ".." &&
		!slices.ContainsFunc([]byte(s), func(b byte) bool { return b <= ' ' || b >= 0x7f || strings.IndexByte("/*#", b) >= 0 })
}

func (p *parser) conntrack(f *conntrackEntry, c *Conntrack) {
	for _, n := range []struct {
		path string
		from *int32
		into *int
	}{
		{"conntrack.maxPerCore", f.MaxPerCore, &c.MaxPerCore},
		{"conntrack.min", f.Min, &c.Min},
	} {
		if n.from == nil {
			continue
		}
		if *n.into = int(*n.from); *n.from < 0 {
			p.errorf(n.path, "%d is negative", *n.from)
		}
	}
	c.TCPBeLiberal = f.TCPBeLiberal
	for _, d := range []struct {
		path, from string
		into       *time.Duration
	}{
		{"conntrack.tcpEstablishedTimeout", f.TCPEstablishedTimeout, &c.TCPEstablishedTimeout},
		{"conntrack.tcpCloseWaitTimeout", f.TCPCloseWaitTimeout, &c.TCPCloseWaitTimeout},
		{"conntrack.udpTimeout", f.UDPTimeout, &c.UDPTimeout},
		{"conntrack.udpStreamTimeout", f.UDPStreamTimeout, &c.UDPStreamTimeout},
	} {
		p.seconds(d.path, d.from, d.into)
	}
}

// maxSeconds is the kernel's limit: an int of jiffies, up to 1000 per second.
const maxSeconds = (1<<31 - 1) / 1000

// PodInterfaces returns the input interfaces of Pods; a trailing * matches any suffix.
func (c *Config) PodInterfaces() []string {
	switch c.DetectLocalMode {
	case BridgeInterface:
		return []string{c.DetectLocal.BridgeInterface}
	case InterfaceNamePrefix:
		return []string{c.DetectLocal.InterfaceNamePrefix + "*"}
	}
	return nil
}

// PodSources returns the configured Pod ranges. It does not include the Node's podCIDRs.
func (c *Config) PodSources() []netip.Prefix {
	if c.DetectLocalMode == ClusterCIDR {
		return c.ClusterCIDR
	}
	return nil
}

// MissingFiles returns a message for each configured file that does not exist on this host. It may exist on another.
func (c *Config) MissingFiles() []string {
	var out []string
	if file := c.ClientConnection.Kubeconfig; file != "" {
		if _, err := os.Stat(file); err != nil {
			out = append(out, fmt.Sprintf("clientConnection.kubeconfig: %v: sluice run requires it", err))
		}
	}
	for i := range c.Plugins {
		if file := c.Plugins[i].VerifyKey; file != "" {
			if _, err := os.Stat(file); err != nil {
				out = append(out, fmt.Sprintf("plugins[%d].verify.key: %v: the plugin does not load without it", i, err))
			}
		}
	}
	if len(c.Images()) > 0 {
		for _, f := range [][2]string{{"dockerConfig", c.PluginImages.DockerConfig}, {"caFile", c.PluginImages.CAFile}} {
			if _, err := os.Stat(f[1]); f[1] != "" && err != nil {
				out = append(out, fmt.Sprintf("pluginImages.%s: %v: pulling images requires it", f[0], err))
			}
		}
	}
	return out
}

// Warnings returns messages about valid settings that are probably mistakes.
func (c *Config) Warnings() []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if c.DetectLocalMode == ClusterCIDR && len(c.ClusterCIDR) == 0 {
		warn("clusterCIDR: empty, so no source is treated as a Pod: connections from outside the cluster to ClusterIPs are not " +
			"masqueraded, and with externalTrafficPolicy Local Pods are limited to local endpoints like external clients")
	}
	if c.DetectLocalMode != ClusterCIDR && len(c.ClusterCIDR) > 0 {
		warn("clusterCIDR: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != BridgeInterface && c.DetectLocal.BridgeInterface != "" {
		warn("detectLocal.bridgeInterface: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != InterfaceNamePrefix && c.DetectLocal.InterfaceNamePrefix != "" {
		warn("detectLocal.interfaceNamePrefix: ignored with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.Conntrack.MaxPerCore == 0 && c.Conntrack.Min != 0 && c.Conntrack.Min != defaultConntrack().Min {
		warn("conntrack.min: ignored with conntrack.maxPerCore 0, which keeps the kernel's limit")
	}
	if c.BindAddress.IsLoopback() {
		warn("bindAddress: %s is a loopback address, which never serves NodePorts", c.BindAddress)
	}
	return slices.Concat(out, c.refusedRanges(), c.portWarnings(), c.schedulerWarnings(), c.policyWarnings())
}
