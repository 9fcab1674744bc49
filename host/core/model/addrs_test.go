package model

import (
	"net/netip"
	"testing"
)

func TestAddrListRoundTrip(t *testing.T) {
	for name, list := range map[string][]string{
		"none":  {},
		"IPv4":  {"10.0.0.1:80", "255.255.255.255:65535", "0.0.0.0:0"},
		"IPv6":  {"[fd00::1]:80", "[::]:0", "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"},
		"mixed": {"10.0.0.1:80", "[fd00::1]:443"},
	} {
		want := make([]netip.AddrPort, len(list))
		for i, s := range list {
			want[i] = netip.MustParseAddrPort(s)
		}
		l := PackAddrs(len(want), func(i int) netip.AddrPort { return want[i] })
		if l.Len() != len(want) {
			t.Fatalf("%s: %d, want %d", name, l.Len(), len(want))
		}
		for i := range want {
			if got := l.At(i); got != want[i] {
				t.Errorf("%s: %s, want %s", name, got, want[i])
			}
		}
		if name == "IPv4" && len(l) != 1+6*len(want) {
			t.Errorf("%d bytes", len(l))
		}
	}
}
