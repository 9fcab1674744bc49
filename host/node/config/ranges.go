package config

import (
	"fmt"
	"net/netip"
	"net/url"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
)

// ClusterRanges returns the addresses of the cluster that the configuration names: of Pods and of the API server.
func (c *Config) ClusterRanges() []netip.Prefix {
	return append(ServerRange(c.ClientConnection.Server), c.ClusterCIDR...)
}

// ServerRange returns the address in the URL of an API server, or nil if it has a name.
func ServerRange(server string) []netip.Prefix {
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}
	a, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())}
}

// RefusedRanges returns messages about ranges of Pods whose addresses are refused as endpoints.
func (c *Config) RefusedRanges() (out []string) {
	rules := &eligibility.EndpointRules{Allowed: append(eligibility.ReservedInUse(c.ClusterRanges()), c.EndpointCIDRs...)}
	for _, r := range c.ClusterCIDR {
		if err := rules.Check(r.Addr()); err != nil && r.Bits() > 0 {
			out = append(out, fmt.Sprintf("clusterCIDR: endpoints in %s are refused: %s", r, err))
		}
	}
	for i, r := range c.EndpointCIDRs {
		if a := r.Addr(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
			out = append(out, fmt.Sprintf("endpointCIDRs[%d]: %s does not help: loopback, link-local and multicast addresses are never endpoints", i, r))
		}
	}
	return out
}
