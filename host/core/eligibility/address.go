package eligibility

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// EndpointRules say which addresses may be endpoints. Whoever may write EndpointSlices in one namespace makes the nodes connect
// to them, past what would refuse the connection of a Pod. The API server refuses unspecified, loopback and link-local
// addresses; these are others that lead there, to what a cloud tells its machines only, or nowhere.
type EndpointRules struct {
	ServiceCIDRs []netip.Prefix        // of the cluster: a cluster IP is translated once, so it is no endpoint
	ClusterIP    func(netip.Addr) bool // reports a cluster IP outside of ServiceCIDRs; nil: there is none
	Allowed      []netip.Prefix        // exceptions from the other rules
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8")   // RFC 1122
	reserved    = netip.MustParsePrefix("240.0.0.0/4") // RFC 1112
)

// ReservedInUse returns the reserved IPv4 blocks that contain one of the ranges: those of a cluster that uses addresses there.
// Packets to such a block lead nowhere elsewhere, which is all that is wrong with its endpoints.
func ReservedInUse(ranges []netip.Prefix) (out []netip.Prefix) {
	for _, block := range [...]netip.Prefix{thisNetwork, reserved} {
		if slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return block.Bits() <= r.Bits() && block.Contains(r.Addr()) }) {
			out = append(out, block)
		}
	}
	return out
}

// Check returns why an address may not be an endpoint, nil if it may.
func (r *EndpointRules) Check(a netip.Addr) error {
	if r == nil {
		return nil
	}
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	if slices.ContainsFunc(r.ServiceCIDRs, contains) {
		return fmt.Errorf("%s is an address of a ServiceCIDR", a)
	}
	if r.ClusterIP != nil && r.ClusterIP(a) {
		return fmt.Errorf("%s is the ClusterIP of a Service", a)
	}
	if why := unsafe(a); why != "" && !slices.ContainsFunc(r.Allowed, contains) {
		return fmt.Errorf("%s is %s", a, why)
	}
	return nil
}

// unsafe returns what kind of address must not be an endpoint, "" for others.
func unsafe(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast():
		return "a multicast address"
	case thisNetwork.Contains(a):
		return "in 0.0.0.0/8 (this network)"
	case reserved.Contains(a):
		return "in 240.0.0.0/4 (reserved)"
	case ipaddr.Metadata(a) != "":
		return "the metadata address of " + ipaddr.Metadata(a)
	case a.Is4():
		return ""
	}
	if v4, ok := ipaddr.Embedded(a); ok && unsafe(v4) != "" {
		return "an IPv6 form of " + v4.String() + ", " + unsafe(v4)
	}
	return ""
}
