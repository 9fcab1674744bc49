package config

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// The ways to tell a Pod from other sources: by the cluster's range, by the ranges of this Node (spec.podCIDRs), by
// the bridge that Pods are on, by how the names of their interfaces begin.
const (
	ClusterCIDR         = "ClusterCIDR"
	NodeCIDR            = "NodeCIDR"
	BridgeInterface     = "BridgeInterface"
	InterfaceNamePrefix = "InterfaceNamePrefix"
)

// DetectLocal is the interfaces that connections of Pods come in by.
type DetectLocal struct {
	BridgeInterface     string // of mode BridgeInterface
	InterfaceNamePrefix string // of mode InterfaceNamePrefix
}

// Conntrack is what sluice sets of the kernel's connection table. A 0 leaves the kernel's value as it is.
type Conntrack struct {
	MaxPerCore            int // entries for each CPU; 0: Min says nothing either
	Min                   int // entries at least
	TCPBeLiberal          bool
	TCPEstablishedTimeout time.Duration // whole seconds, like the others
	TCPCloseWaitTimeout   time.Duration
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
}

func defaultConntrack() Conntrack {
	return Conntrack{
		MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour}
}

// Logging is how sluice logs.
type Logging struct {
	Format    string // LogText or LogJSON
	Verbosity int    // 1 and more logs at debug level
}

// The forms of a log line.
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

// node reads what is about this node: its address, how its Pods are told, and its kernel.
func (p *parser) node(f *configFile, c *Config) {
	c.BindAddress = p.address("bindAddress", f.BindAddress)
	c.BindAddressHardFail = f.BindAddressFail
	p.detectLocal(f, c)
	p.conntrack(&f.Conntrack, &c.Conntrack)
	if adj := f.OOMScoreAdj; adj != nil {
		if *adj < -1000 || *adj > 1000 {
			p.errorf("oomScoreAdj", "%d is not between -1000 and 1000", *adj)
		}
		c.OOMScoreAdj = int(*adj)
	}
	switch f.Logging.Format {
	case "":
	case LogText, LogJSON:
		c.Logging.Format = f.Logging.Format
	default:
		p.errorf("logging.format", "%q: must be %s or %s", f.Logging.Format, LogText, LogJSON)
	}
	if c.Logging.Verbosity = int(f.Logging.Verbosity); c.Logging.Verbosity < 0 {
		p.errorf("logging.verbosity", "%d is below 0", c.Logging.Verbosity)
	}
}

// address reads an address; the unspecified ones say nothing, as in kube-proxy.
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
		p.errorf("detectLocalMode", "%q: must be %s%s", c.DetectLocalMode, strings.Join(modes, ", "), strictyaml.DidYouMean(c.DetectLocalMode, modes))
	}
	c.DetectLocal = DetectLocal(f.DetectLocal)
	for _, i := range []struct{ path, name, mode string }{
		{"detectLocal.bridgeInterface", c.DetectLocal.BridgeInterface, BridgeInterface},
		{"detectLocal.interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix, InterfaceNamePrefix},
	} {
		switch {
		case i.name == "" && c.DetectLocalMode == i.mode:
			p.errorf(i.path, "missing: detectLocalMode %s needs it", i.mode)
		case i.name != "" && !isInterface(i.name):
			p.errorf(i.path, "%q is not an interface's name: 1 to 15 letters, digits and signs without '/', '*', '#' and blanks", i.name)
		}
	}
}

// seconds reads a time-out as the kernel holds it.
func (p *parser) seconds(path, from string, into *time.Duration) {
	p.duration(path, from, 0, into)
	switch seconds := *into / time.Second; {
	case *into%time.Second != 0:
		p.errorf(path, "%s is not whole seconds", *into)
	case seconds > maxSeconds:
		p.errorf(path, "%s is longer than the kernel can hold, %ds", *into, maxSeconds)
	}
}

// isInterface accepts what Linux does, without the signs that a pattern is written with.
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
			p.errorf(n.path, "%d is below 0", *n.from)
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

// maxSeconds is the kernel's bound: an int of jiffies, at up to 1000 a second.
const maxSeconds = (1<<31 - 1) / 1000

// PodInterfaces are the input interfaces whose sources count as Pods, as the plan takes them.
func (c *Config) PodInterfaces() []string {
	switch c.DetectLocalMode {
	case BridgeInterface:
		return []string{c.DetectLocal.BridgeInterface}
	case InterfaceNamePrefix:
		return []string{c.DetectLocal.InterfaceNamePrefix + "*"}
	}
	return nil
}

// PodSources are the ranges whose addresses count as Pods; those of the Node are not known here.
func (c *Config) PodSources() []netip.Prefix {
	if c.DetectLocalMode == ClusterCIDR {
		return c.ClusterCIDR
	}
	return nil
}

// MissingFiles is what the configuration names and this host has not: another one may have it.
func (c *Config) MissingFiles() []string {
	var out []string
	if file := c.ClientConnection.Kubeconfig; file != "" {
		if _, err := os.Stat(file); err != nil {
			out = append(out, fmt.Sprintf("clientConnection.kubeconfig: %v: sluice run does not start without it", err))
		}
	}
	return out
}

// Warnings are about what is allowed, and mostly not meant.
func (c *Config) Warnings() []string {
	var out []string
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if c.DetectLocalMode == ClusterCIDR && len(c.ClusterCIDR) == 0 {
		warn("clusterCIDR: empty, so no source counts as a Pod: connections from outside the cluster to a ClusterIP are " +
			"not masqueraded, and under externalTrafficPolicy Local a Pod gets what the outside gets")
	}
	if c.DetectLocalMode != ClusterCIDR && len(c.ClusterCIDR) > 0 {
		warn("clusterCIDR: not used with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != BridgeInterface && c.DetectLocal.BridgeInterface != "" {
		warn("detectLocal.bridgeInterface: not used with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.DetectLocalMode != InterfaceNamePrefix && c.DetectLocal.InterfaceNamePrefix != "" {
		warn("detectLocal.interfaceNamePrefix: not used with detectLocalMode %s", c.DetectLocalMode)
	}
	if c.Conntrack.MaxPerCore == 0 && c.Conntrack.Min != 0 && c.Conntrack.Min != defaultConntrack().Min {
		warn("conntrack.min: not used with conntrack.maxPerCore 0, which leaves the kernel's limit as it is")
	}
	if c.BindAddress.IsLoopback() {
		warn("bindAddress: %s is a loopback address, on which no NodePort answers", c.BindAddress)
	}
	return out
}
