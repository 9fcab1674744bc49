package nftables

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestSetRejectedUpdatesTheRejectTables(t *testing.T) {
	d := newTestEnv(t, 0)
	list := func() string {
		t.Helper()
		out, err := d.nft("", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	set := func(addrs ...netip.Addr) {
		t.Helper()
		if err := SetRejected(d.lab.Node.Fd(), addrs); err != nil {
			t.Fatal(err)
		}
	}
	var many []netip.Addr
	for _, first := range []string{"10.96.0.0", "fd00:10:96::"} {
		for a := netip.MustParseAddr(first); len(many)%2500 != 2499; many = append(many, a) {
			a = a.Next()
		}
		many = append(many, netip.MustParseAddr(first))
	}
	if set(); list() != "" {
		t.Errorf("without addresses: %s", list())
	}
	set(many...)
	if out := list(); strings.Count(out, "10.96.")+strings.Count(out, "fd00:10:96:") != len(many) {
		t.Errorf("addresses are missing: %s", out)
	}
	set(many[:2]...)
	set(many[:2]...)
	for _, part := range []string{
		"elements = { 10.96.0.1, 10.96.0.2 }", "hook input priority 101; policy accept;",
		"ip daddr @addrs ct state new reject with tcp reset",
		"ip daddr @addrs ct state new meta l4proto != icmp reject",
	} {
		if out := list(); !strings.Contains(out, part) || strings.Contains(out, "table ip6") {
			t.Errorf("no %s in %s", part, out)
		}
	}
	if set(); list() != "" {
		t.Errorf("left %s", list())
	}
	set(many[len(many)-1])
	removed, err := Cleanup(context.Background(), d.lab.Node.Fd())
	if err != nil || !slices.Equal(removed, []string{"nftables table ip6 sluice-reject"}) || list() != "" {
		t.Errorf("cleanup removed %v, %v, left %s", removed, err, list())
	}
}
