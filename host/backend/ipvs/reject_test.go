package ipvs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestAddressesThatLeaveAreListedInATableOfTheirOwn(t *testing.T) {
	d := &env{TB: t, Bed: testbed.New(t, 0)}
	list := func() string {
		t.Helper()
		out, err := d.run("", "nft", "list", "ruleset")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	set := func(addrs ...netip.Addr) []string {
		t.Helper()
		removed, err := setRejected(d.Lab.Node.Fd(), addrs)
		if err != nil {
			t.Fatal(err)
		}
		return removed
	}
	var many []netip.Addr
	for _, first := range []string{"10.96.0.0", "fd00:10:96::"} {
		for a := netip.MustParseAddr(first); len(many)%2500 != 2499; many = append(many, a) {
			a = a.Next()
		}
		many = append(many, netip.MustParseAddr(first))
	}
	if removed := set(); len(removed) > 0 || list() != "" {
		t.Errorf("of nothing: removed %v, %s", removed, list())
	}
	set(many...)
	if out := list(); strings.Count(out, "10.96.")+strings.Count(out, "fd00:10:96:") != len(many) {
		t.Errorf("not all are there: %s", out)
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
	if removed := set(); len(removed) != 1 || list() != "" {
		t.Errorf("removed %v, left %s", removed, list())
	}
}

// TestTheNodesServersAreNotMetAtAnAddressThatIsHereForConnectionsOfBefore is about the time after a change to mode
// nftables, in which the addresses are still here and the companion is not.
func TestTheNodesServersAreNotMetAtAnAddressThatIsHereForConnectionsOfBefore(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	d.apply(b, p, nil)
	held := map[string]net.Conn{"a client's": d.dial("203.0.113.5:80")}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := d.Lab.Node.Dial(ctx, "tcp", netip.MustParseAddrPort("203.0.113.5:80"))
	if err == nil {
		defer c.Close()
		_, err = testnet.Greeting(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	held["the node's"] = c
	b.Close()
	n, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: d.options().Now})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := n.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	retire := func(force bool, want int) {
		t.Helper()
		left, err := DrainAll(context.Background(), d.options(), force)
		if err != nil || left != want {
			t.Errorf("%d virtual servers are left, want %d; %v", left, want, err)
		}
	}
	for range 2 {
		retire(false, 1)
		for whose, c := range held {
			if err := checkAlive(c); err != nil {
				t.Errorf("%s connection: %v", whose, err)
			}
		}
		for _, h := range []*testnet.Host{d.Client, d.Pods[0], d.Lab.Node} {
			if _, err := h.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout); !testnet.Refused(err) {
				t.Errorf("%s meets the node's own server: %v, want a refusal", h.Name, err)
			}
			d.ask(h, "tcp", "203.0.113.5:80")
		}
	}
	// Mode ipvs again, and back: the table is in nobody's way.
	b = d.open()
	d.apply(b, p, nil)
	if out, err := d.run("", "nft", "list", "tables"); err != nil || strings.Contains(out, rejectTableName) {
		t.Errorf("in mode ipvs: %s, %v", out, err)
	}
	d.ask(d.Client, "tcp", "203.0.113.5:80")
	b.Close()
	if _, err := n.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	retire(false, 1)
	retire(true, 0)
	if out := d.mustRun("nft", "list", "tables") + d.mustRun("ip", "-br", "link"); strings.Contains(out, rejectTableName) || strings.Contains(out, DefaultLink) {
		t.Errorf("left: %s", out)
	}
}

// TestAnotherLinkTakesTheAddressesOver is a change of ipvs.interface, with connections, and on to mode nftables.
func TestAnotherLinkTakesTheAddressesOver(t *testing.T) {
	d := newEnv(t)
	for _, link := range []string{"up7", "up8"} {
		d.mustRun("ip", "link", "add", link, "type", "dummy")
		d.mustRun("ip", "link", "set", link, "up")
	}
	p := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	for k, f := range web(t, 1).Frontends {
		p.Frontends[k] = f
	}
	var conns []net.Conn
	o := d.options()
	links := []string{DefaultLink, "up7", "up8", DefaultLink}
	for i, link := range links {
		o.Link = link
		b, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		d.apply(b, p, nil)
		for _, l := range links {
			out, _ := d.run("", "ip", "-br", "addr", "show", "dev", l)
			if on := strings.Contains(out, "10.96.0.80/32") && strings.Contains(out, "203.0.113.5/32"); on != (l == link) {
				t.Errorf("ipvs.interface %s: on %s: %s", link, l, out)
			}
		}
		if link != DefaultLink && strings.Contains(d.mustRun("ip", "-br", "link"), DefaultLink) {
			t.Errorf("ipvs.interface %s: the link of before is still there", link)
		}
		if m, err := b.Drifted(context.Background()); m || err != nil {
			t.Errorf("moved %v, %v", m, err)
		}
		if i == 2 {
			d.settle(b, p)
		}
		conns = append(conns, d.dial("10.96.0.80:80"))
		for _, c := range conns {
			if err := checkAlive(c); err != nil {
				t.Errorf("ipvs.interface %s: a connection: %v", link, err)
			}
		}
		b.Close()
	}
	bound, err := boundVIPsIn(d, "up8")
	if err != nil || len(bound) != 2 {
		t.Errorf("bound %v, %v", bound, err)
	}
	// Whoever cleans up needs not know the link.
	d.mustRun("ip", "addr", "add", "198.51.100.1/32", "dev", DefaultLink)
	o.Link = "up7"
	if _, err := Cleanup(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if out := d.mustRun("ip", "-br", "addr"); strings.Contains(out, "10.96.0.80") || !strings.Contains(out, "198.51.100.1/32") {
		t.Errorf("left, with somebody else's: %s", out)
	}
	d.mustRun("ip", "addr", "del", "198.51.100.1/32", "dev", DefaultLink)
	if _, err := Cleanup(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if out := d.mustRun("ip", "-br", "link"); strings.Contains(out, DefaultLink) {
		t.Errorf("left: %s", out)
	}
}

// boundVIPsIn is Bound in the node.
func boundVIPsIn(d *env, link string) (bound map[netip.Addr]bool, err error) {
	err = d.Lab.Node.Do(func() error {
		bound, err = BoundVIPs(link)
		return err
	})
	return bound, err
}
