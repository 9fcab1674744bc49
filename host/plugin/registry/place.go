package registry

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// place is a kind of address. A registry may lead to public ones, and to those of its own kind.
type place int

const (
	public place = iota
	private
	linkLocal
	loopback
	metadata // a cloud's services for its machines, which give credentials to whoever asks: never
)

func (p place) String() string {
	return [...]string{"a public address", "a private address", "a link-local address", "a loopback address", "an address of a cloud's metadata service"}[p]
}

var (
	loopbackPrefixes = prefixes("127.0.0.0/8", "0.0.0.0/8", "::/127") // Linux connects to itself for 0.0.0.0 and ::
	linkPrefixes     = prefixes("169.254.0.0/16", "fe80::/10")
	privatePrefixes  = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "fc00::/7", "fec0::/10")
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// placeOf returns the kind of an address, also of an IPv4 address that an IPv6 address stands for.
func placeOf(a netip.Addr) place {
	a = a.Unmap().WithZone("")
	in := func(all []netip.Prefix) bool {
		return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	switch {
	case ipaddr.Metadata(a) != "":
		return metadata
	case in(loopbackPrefixes):
		return loopback
	case in(linkPrefixes):
		return linkLocal
	case in(privatePrefixes):
		return private
	}
	if v4, ok := ipaddr.Embedded(a); ok {
		return placeOf(v4)
	}
	return public
}
