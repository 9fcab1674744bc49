package source

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// parseAddr reads an IP address as Kubernetes stores them: leading zeros in IPv4 octets are decimal, not octal
// (older API servers let them in), IPv4-mapped IPv6 addresses are IPv4, and zones are not allowed.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(trimLeadingZeros(s))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// parsePrefix reads a CIDR with the same leniency, and with blanks around it. Host bits are cut off.
func parsePrefix(s string) (netip.Prefix, error) {
	bad := fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8", s)
	host, mask, ok := strings.Cut(strings.TrimSpace(s), "/")
	if !ok {
		return netip.Prefix{}, bad
	}
	a, err := netip.ParseAddr(trimLeadingZeros(host))
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Prefix{}, bad
	}
	n, err := strconv.ParseUint(mask, 10, 8)
	if err != nil || int(n) > a.BitLen() {
		return netip.Prefix{}, bad
	}
	return netip.PrefixFrom(a, int(n)).Masked(), nil
}

// trimLeadingZeros removes leading zeros from the dotted part of an address.
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

// checkFrontend refuses addresses that cannot be a Service's: capturing them would break the node itself.
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

// checkEndpoint refuses what the API server refuses in an EndpointSlice: traffic must not be sent to the node's own
// loopback services or to its cloud's metadata address.
func checkEndpoint(a netip.Addr) error {
	if a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is a link-local address", a)
	}
	return checkFrontend(a)
}
