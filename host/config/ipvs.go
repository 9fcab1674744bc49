package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"time"
)

// IPVS is what concerns mode ipvs only. Its fields are kube-proxy's, and Interface and ConnectionMetrics.
type IPVS struct {
	Scheduler    string         // the kernel's, for Services without a policy that asks for another way to balance
	StrictARP    bool           // the node answers ARP for the addresses of the link that asks only
	ExcludeCIDRs []netip.Prefix // where virtual servers of others are never taken over
	Interface    string         // the link for the addresses of Services
	// ConnectionMetrics: the kernel's counts of each virtual server are among the metrics. It changes no data plane.
	ConnectionMetrics bool
	// Time-outs of IPVS's table of connections; 0 leaves the kernel's.
	TCPTimeout    time.Duration
	TCPFinTimeout time.Duration
	UDPTimeout    time.Duration
}

func defaultIPVS() IPVS { return IPVS{Scheduler: "wrr", Interface: "sluice-ipvs0"} }

type ipvsEntry struct {
	Scheduler         string   `json:"scheduler"`
	StrictARP         bool     `json:"strictARP"`
	TCPTimeout        string   `json:"tcpTimeout"`
	TCPFinTimeout     string   `json:"tcpFinTimeout"`
	UDPTimeout        string   `json:"udpTimeout"`
	ExcludeCIDRs      []string `json:"excludeCIDRs"`
	Interface         string   `json:"interface"`
	ConnectionMetrics bool     `json:"connectionMetrics"`
}

// schedulerName is what the name of a kernel module after ip_vs_ may be.
var schedulerName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

func (p *parser) ipvs(f *configFile, c *Config) {
	e := &f.IPVS
	if e.Scheduler != "" {
		if c.IPVS.Scheduler = e.Scheduler; !schedulerName.MatchString(e.Scheduler) {
			p.errorf("ipvs.scheduler", "%q is not the name of a scheduler such as wrr, wlc or mh", e.Scheduler)
		}
	}
	c.IPVS.StrictARP, c.IPVS.ConnectionMetrics = e.StrictARP, e.ConnectionMetrics
	p.seconds("ipvs.tcpTimeout", e.TCPTimeout, &c.IPVS.TCPTimeout)
	p.seconds("ipvs.tcpFinTimeout", e.TCPFinTimeout, &c.IPVS.TCPFinTimeout)
	p.seconds("ipvs.udpTimeout", e.UDPTimeout, &c.IPVS.UDPTimeout)
	for i, s := range e.ExcludeCIDRs {
		if x, ok := p.prefix(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), s); ok {
			c.IPVS.ExcludeCIDRs = append(c.IPVS.ExcludeCIDRs, x)
		}
	}
	if e.Interface != "" {
		if c.IPVS.Interface = e.Interface; !isInterface(e.Interface) {
			p.errorf("ipvs.interface", "%q is not an interface's name", e.Interface)
		}
	}
}

func (c *IPVS) effective() ipvsEntry {
	return ipvsEntry{
		Scheduler: c.Scheduler, StrictARP: c.StrictARP, ExcludeCIDRs: prefixStrings(c.ExcludeCIDRs), Interface: c.Interface,
		ConnectionMetrics: c.ConnectionMetrics,
		TCPTimeout:        c.TCPTimeout.String(), TCPFinTimeout: c.TCPFinTimeout.String(), UDPTimeout: c.UDPTimeout.String(),
	}
}

// ipvs moves the section of kube-proxy's mode of that name.
func (m *migration) ipvs() {
	if m.backend != ModeIPVS {
		return
	}
	m.put("mode", ModeIPVS)
	for _, name := range []string{"scheduler", "strictARP", "excludeCIDRs", "tcpTimeout", "tcpFinTimeout", "udpTimeout"} {
		path := "ipvs." + name
		v := m.take(path)
		text, isText := v.(string)
		if weighted := map[string]string{"rr": "wrr", "lc": "wlc"}[text]; name == "scheduler" && weighted != "" {
			m.note(path, "%s: %s, which is the same with equal weights, and looks at those of policies", v, weighted)
			v = weighted
		}
		switch {
		case v == nil:
		case isText && (text == "" || text == "0s"):
			m.omittedDefaults = append(m.omittedDefaults, path)
		default:
			m.put(path, v)
		}
	}
}
