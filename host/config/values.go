package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// CheckServer returns an error if s is neither empty nor the URL of an API server.
func CheckServer(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err == nil && u.User != nil { // not included in the error: it may be a password
		return errors.New("URL must not contain credentials; put them into a kubeconfig")
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not a URL such as https://192.0.2.1:6443", s)
	}
	return nil
}

func (p *parser) path(name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(p.dir, name)
}

// clusterCIDR parses at most one CIDR of each family, separated by a comma.
func (p *parser) clusterCIDR(s string) []netip.Prefix {
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var out []netip.Prefix
	seen := map[model.Family]bool{}
	for part := range strings.SplitSeq(s, ",") {
		c, ok := p.prefix("clusterCIDR", strings.TrimSpace(part))
		if !ok {
			continue
		}
		if f := model.FamilyOf(c.Addr()); seen[f] {
			p.errorf("clusterCIDR", "%s: more than one CIDR of %s", c, f)
		} else {
			seen[f] = true
			out = append(out, c)
		}
	}
	return out
}

// nodePortAddresses parses CIDRs and the words primary, all and localhost (KEP-6032). An empty list means primary. The words all and
// localhost are returned as the CIDRs that they stand for, and primary beside others as withPrimary.
func (p *parser) nodePortAddresses(list []string) (out []netip.Prefix, withPrimary bool) {
	for i, s := range list {
		switch path := fmt.Sprintf("nodePortAddresses[%d]", i); s {
		case "primary":
			withPrimary = true
		case "all":
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case "localhost":
			out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), netip.PrefixFrom(netip.IPv6Loopback(), 128))
		default:
			if c, ok := p.prefix(path, s); ok {
				out = append(out, c)
			}
		}
	}
	return out, withPrimary && out != nil
}

// Values of Config.ExternalIPs.
const (
	Allow  = "Allow"
	Ignore = "Ignore"
)

// nodePortRange parses the range of NodePorts; an empty text is the API server's default.
func (p *parser) nodePortRange(s string) PortRange {
	if s == "" {
		return DefaultNodePortRange()
	}
	r, err := ParsePortRange(s)
	if err != nil {
		p.errorf("nodePortRange", "%s", err)
	}
	return r
}

func (p *parser) prefix(path, s string) (netip.Prefix, bool) {
	c, err := netip.ParsePrefix(s)
	if err != nil || c.Addr().Is4In6() {
		p.errorf(path, "%q is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56", s)
		return netip.Prefix{}, false
	}
	return c.Masked(), true
}

func (p *parser) duration(path, s string, minimum time.Duration, into *time.Duration) {
	if s == "" {
		return
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		p.errorf(path, "%q is not a duration such as 30s or 1m30s", s)
	case d < minimum:
		p.errorf(path, "%s is less than %s", s, minimum)
	default:
		*into = d
	}
}

// listen parses a listen address; an empty one disables the server.
func (p *parser) listen(path string, s, into *string) {
	if s == nil {
		return
	}
	if *s == "" {
		*into = ""
		return
	}
	a, err := netip.ParseAddrPort(*s)
	if err != nil {
		p.errorf(path, "%q is not an IP address and port such as 127.0.0.1:10249 or [::]:10249", *s)
		return
	}
	*into = a.String()
}
