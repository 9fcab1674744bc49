package source

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr parses an IP address as Kubernetes does: leading zeros of IPv4 octets are ignored (older API servers accept
// them), IPv4-mapped IPv6 addresses become IPv4, and zones are invalid.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(trimLeadingZeros(s))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// parsePrefix parses a CIDR with the same leniency and ignores surrounding spaces. Host bits are cleared.
func parsePrefix(s string) (netip.Prefix, error) {
	errInvalid := fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8", s)
	host, mask, ok := strings.Cut(strings.TrimSpace(s), "/")
	if !ok {
		return netip.Prefix{}, errInvalid
	}
	a, err := netip.ParseAddr(trimLeadingZeros(host))
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Prefix{}, errInvalid
	}
	n, err := strconv.ParseUint(mask, 10, 8)
	if err != nil || int(n) > a.BitLen() {
		return netip.Prefix{}, errInvalid
	}
	return netip.PrefixFrom(a, int(n)).Masked(), nil
}

// trimLeadingZeros removes leading zeros from the dotted octets of an address.
func trimLeadingZeros(s string) string {
	at := strings.LastIndexByte(s, ':') + 1
	if !strings.Contains(s[at:], ".") || !strings.Contains(s[at:], "0") {
		return s
	}
	parts := strings.Split(s[at:], ".")
	for i, p := range parts {
		if t := strings.TrimLeft(p, "0"); t != "" {
			parts[i] = t
		} else if p != "" {
			parts[i] = "0"
		}
	}
	return s[:at] + strings.Join(parts, ".")
}

// checkFrontend rejects addresses that cannot be a Service's: capturing their traffic would break the node.
func checkFrontend(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", a)
	case a.IsLoopback():
		return fmt.Errorf("%s is a loopback address", a)
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is not a unicast address", a)
	}
	return nil
}

// checkEndpoint rejects the addresses that the API server rejects in an EndpointSlice: traffic must not reach the node's
// loopback services or its cloud's metadata address.
func checkEndpoint(a netip.Addr) error {
	if a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is a link-local address", a)
	}
	return checkFrontend(a)
}
