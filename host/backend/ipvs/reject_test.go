package ipvs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestNodeSocketsAreUnreachableAtAVIPThatDrains: after a switch to mode nftables, VIPs are still local, and the rules
// that guarded them are gone.
func TestNodeSocketsAreUnreachableAtAVIPThatDrains(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	d.apply(b, p, nil)
	conns := map[string]net.Conn{"a client's": d.dial("203.0.113.5:80")}
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
	conns["the node's"] = c
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
		for whose, c := range conns {
			if err := checkAlive(c); err != nil {
				t.Errorf("%s connection: %v", whose, err)
			}
		}
		for _, h := range []*testnet.Host{d.Client, d.Pods[0], d.Lab.Node} {
			if _, err := h.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout); !testnet.Refused(err) {
				t.Errorf("%s connects to the node's own server: %v, want a rejection", h.Name, err)
			}
			d.ask(h, "tcp", "203.0.113.5:80")
		}
	}
	// Mode ipvs again, and back: the reject table is deleted first.
	b = d.open()
	d.apply(b, p, nil)
	if out, err := d.run("", "nft", "list", "tables"); err != nil || strings.Contains(out, "sluice-reject") {
		t.Errorf("in mode ipvs: %s, %v", out, err)
	}
	d.ask(d.Client, "tcp", "203.0.113.5:80")
	b.Close()
	if _, err := n.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	retire(false, 1)
	retire(true, 0)
	if out := d.mustRun("nft", "list", "tables") + d.mustRun("ip", "-br", "link"); strings.Contains(out, "sluice-reject") || strings.Contains(out, DefaultLink) {
		t.Errorf("left: %s", out)
	}
}
