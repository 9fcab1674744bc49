package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestOnlyConnectionsWithoutAnAnswerAreDeleted: of random connections exactly those through the given frontends to the given
// endpoints that have seen no packet of the endpoint, and of TCP only those whose handshake has not gone on.
func TestOnlyConnectionsWithoutAnAnswerAreDeleted(t *testing.T) {
	const confirmed, seenReply = 1 << 3, statusSeenReply
	frontends := []netip.AddrPort{shedFrontend, shedNodePort, netip.MustParseAddrPort("10.96.0.11:80"), netip.MustParseAddrPort("[fd00:10:96::a]:80")}
	endpoints := map[bool][]netip.AddrPort{
		false: {shedEndpoint, otherOne}, true: {netip.MustParseAddrPort("[fd00:10:244::1]:8080"), netip.MustParseAddrPort("[fd00:10:244::2]:8080")},
	}
	to := []plan.Reset{
		{Frontend: key("10.96.0.10:80", model.TCP), Endpoint: shedEndpoint}, {Frontend: key("0.0.0.0:30080", model.TCP), Endpoint: shedEndpoint},
		{Frontend: key("10.96.0.10:80", model.UDP), Endpoint: otherOne}, {Frontend: key("[fd00:10:96::a]:80", model.TCP), Endpoint: endpoints[true][1]},
	}
	rng := rand.New(rand.NewPCG(1, 0))
	flush(t)
	want, deleted := map[netip.AddrPort]bool{}, 0
	const n = 3000 // more than one part of a dump
	for i := range n {
		c := conn{client: shedClient(i), frontend: frontends[rng.IntN(len(frontends))], protocol: unix.IPPROTO_TCP, state: uint8(1 + rng.IntN(8))}
		six := c.frontend.Addr().Is6()
		if six {
			c.client = netip.AddrPortFrom(netip.MustParseAddr("fd00:10:244::9"), uint16(1024+i))
		}
		c.endpoint = endpoints[six][rng.IntN(2)]
		if rng.IntN(3) == 0 {
			c.protocol = unix.IPPROTO_UDP
		} else if rng.IntN(2) == 0 {
			c.state = tcpSynSent
		}
		status := uint32(confirmed)
		if rng.IntN(2) == 0 {
			status |= seenReply
		}
		createEntry(t, c, status)
		k := plan.Key{Addr: c.frontend.Addr(), Port: c.frontend.Port(), Protocol: model.Protocol(c.protocol)}
		if c.frontend == shedNodePort {
			k.Addr = netip.IPv4Unspecified()
		}
		asked := false
		for _, r := range to {
			asked = asked || r == plan.Reset{Frontend: k, Endpoint: c.endpoint}
		}
		if asked && status&seenReply == 0 && (c.protocol == unix.IPPROTO_UDP || c.state == tcpSynSent) {
			deleted++
		} else {
			want[c.client] = true
		}
	}
	got, err := (&Table{}).DeleteUnreplied(t.Context(), to)
	if err != nil || got != deleted || deleted < n/50 {
		t.Errorf("%d are deleted, want %d; %v", got, deleted, err)
	}
	left := map[netip.AddrPort]bool{}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if err := listFlows(t.Context(), f, 0, 0, func(c *flowEntry) { left[c.client] = true }); err != nil {
			t.Fatal(err)
		}
	}
	for c := range want {
		if !left[c] {
			t.Errorf("%s is gone", c)
		}
	}
	if len(left) != len(want) {
		t.Errorf("%d are left, want %d", len(left), len(want))
	}
	if again, err := (&Table{}).DeleteUnreplied(t.Context(), to); again != 0 || err != nil {
		t.Errorf("again: %d, %v", again, err)
	}
}

// TestAnAnswerSavesAListedConnection: an entry that was listed without a reply is looked at again before it is deleted.
func TestAnAnswerSavesAListedConnection(t *testing.T) {
	c := conn{shedClient(1), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpSynSent}
	for _, test := range []struct {
		what    string
		change  func()
		deleted bool
	}{
		{"nothing happens", func() {}, true},
		{"it is answered", func() {
			flush(t)
			c.state = tcpEstablished
			createEntry(t, c, statusSeenReply|1<<3)
		}, false},
		{"the port is used again", func() {
			flush(t)
			other := c
			other.endpoint = otherOne
			createEntry(t, other, 1<<3)
		}, false},
		{"it expires", func() { flush(t) }, false},
	} {
		flush(t)
		c.state = tcpSynSent
		createEntry(t, c, 1<<3)
		var listed *flowEntry
		if err := listFlows(t.Context(), model.IPv4, 0, statusSeenReply, func(c *flowEntry) {
			one := *c
			one.reply = append([]byte{}, c.reply...)
			listed = &one
		}); err != nil || listed == nil {
			t.Fatal(listed, err)
		}
		test.change()
		if deleted, err := deleteUnreplied(model.IPv4, listed); deleted != test.deleted || err != nil {
			t.Errorf("%s: deleted %t, %v", test.what, deleted, err)
		}
	}
}
