package config

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// IPVS configures mode ipvs. Interface, MarkMask and ConnectionMetrics are sluice's, the other fields are kube-proxy's.
type IPVS struct {
	Scheduler    string         // scheduler of Services whose policy does not select another
	StrictARP    bool           // answer ARP requests only on the interface that has the address
	ExcludeCIDRs []netip.Prefix // existing virtual servers with these addresses are never taken over
	Interface    string         // interface with the Service addresses
	MarkMask     uint32         // bits of the packet mark that identify pools
	// ConnectionMetrics exports the kernel's statistics of each virtual server. It does not change the data plane.
	ConnectionMetrics bool
	// IPVS connection timeouts; 0 keeps the kernel's value.
	TCPTimeout    time.Duration
	TCPFinTimeout time.Duration
	UDPTimeout    time.Duration
}

// minMarkBits allow for 254 pools.
const minMarkBits = 8

func defaultIPVS() IPVS {
	return IPVS{Scheduler: "wrr", Interface: "sluice-ipvs0", MarkMask: 0x1f7f}
}

type ipvsEntry struct {
	Scheduler         string   `json:"scheduler"`
	StrictARP         bool     `json:"strictARP"`
	TCPTimeout        string   `json:"tcpTimeout"`
	TCPFinTimeout     string   `json:"tcpFinTimeout"`
	UDPTimeout        string   `json:"udpTimeout"`
	ExcludeCIDRs      []string `json:"excludeCIDRs"`
	Interface         string   `json:"interface"`
	MarkMask          bitMask  `json:"markMask"`
	ConnectionMetrics bool     `json:"connectionMetrics"`
}

// bitMask is written as 0x1f7f, in YAML with or without quotes: without, YAML makes it a decimal number. 0 is absent.
type bitMask uint32

func (m bitMask) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%#x"`, uint32(m)), nil }

func (m *bitMask) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	n, err := strconv.ParseUint(strings.Trim(string(b), `"`), 0, 32)
	if err != nil || n == 0 {
		return errors.New("not a mask of 32 bits such as 0x1f7f")
	}
	*m = bitMask(n)
	return nil
}

// schedulerName matches a scheduler name: the name of its kernel module without ip_vs_.
var schedulerName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

func (p *parser) ipvs(f *configFile, c *Config) {
	e := &f.IPVS
	if e.Scheduler != "" {
		if c.IPVS.Scheduler = e.Scheduler; !schedulerName.MatchString(e.Scheduler) {
			p.errorf("ipvs.scheduler", "%q is not a scheduler name such as wrr, wlc or mh", e.Scheduler)
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
			p.errorf("ipvs.interface", "%q is not an interface name", e.Interface)
		}
	}
	if e.MarkMask != 0 {
		c.IPVS.MarkMask = uint32(e.MarkMask)
	}
	if m := c.IPVS.MarkMask; bits.OnesCount32(m) < minMarkBits {
		p.errorf("ipvs.markMask", "%#x has %d bits, and at least %d are needed", m, bits.OnesCount32(m), minMarkBits)
	} else if c.Mode == ModeIPVS && m&c.MasqueradeMark() != 0 {
		p.errorf("ipvs.markMask", "%#x contains bit %d, which is masqueradeBit", m, c.MasqueradeBit)
	}
}

func (c *IPVS) effective() ipvsEntry {
	return ipvsEntry{
		Scheduler: c.Scheduler, StrictARP: c.StrictARP, ExcludeCIDRs: prefixStrings(c.ExcludeCIDRs), Interface: c.Interface,
		MarkMask: bitMask(c.MarkMask), ConnectionMetrics: c.ConnectionMetrics,
		TCPTimeout: c.TCPTimeout.String(), TCPFinTimeout: c.TCPFinTimeout.String(), UDPTimeout: c.UDPTimeout.String(),
	}
}

// ipvs converts the section ipvs if that is kube-proxy's mode.
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
			m.note(Changed, path, "%s: replaced with %s, which is the same with equal weights and honors the weights of policies", v, weighted)
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
