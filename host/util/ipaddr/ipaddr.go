// Package ipaddr parses addresses as Kubernetes does in objects that older versions have accepted.
package ipaddr

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Parse parses an IP address as Kubernetes does: leading zeros of IPv4 octets are ignored (older API servers accept
// them), IPv4-mapped IPv6 addresses become IPv4, and zones are invalid.
func Parse(s string) (netip.Addr, error) {
	a, err := parse(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// ParsePrefix parses a CIDR with the same leniency and ignores surrounding spaces. Host bits are cleared.
func ParsePrefix(s string) (netip.Prefix, error) {
	errInvalid := fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8", s)
	host, mask, ok := strings.Cut(strings.TrimSpace(s), "/")
	if !ok {
		return netip.Prefix{}, errInvalid
	}
	a, err := parse(host)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Prefix{}, errInvalid
	}
	n, err := strconv.ParseUint(mask, 10, 8)
	if err != nil || int(n) > a.BitLen() {
		return netip.Prefix{}, errInvalid
	}
	return netip.PrefixFrom(a, int(n)).Masked(), nil
}

// parse parses an address with or without leading zeros.
func parse(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(trimLeadingZeros(s))
	}
	return a, err
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
