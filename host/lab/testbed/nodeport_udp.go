package testbed

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// ExpectNodePortsRefuseUDP checks that a datagram from the node to its own NodePort without endpoints is sent and met by
// ECONNREFUSED, and that the node gets an answer once the NodePort has an endpoint. apply gives the
// NodePort 30080/UDP of both families a pool: "reject", or "1".
func ExpectNodePortsRefuseUDP(t testing.TB, node *testnet.Host, apply func(pool string)) {
	t.Helper()
	apply("reject")
	for _, a := range []string{"192.168.0.1:30080", "[fd00:192::1]:30080"} {
		to := netip.MustParseAddrPort(a)
		ctx, cancel := context.WithTimeout(context.Background(), testnet.AnswerTimeout)
		c, err := node.Dial(ctx, "udp", to)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 { // the second packet belongs to a connection that conntrack knows
			if _, err := c.Write([]byte("who?")); err != nil {
				t.Errorf("%s: send: %v", to, err)
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(make([]byte, 64)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: receive: %v, want %v", to, err, syscall.ECONNREFUSED)
			}
		}
	}
	// Another socket of the node: the first ones have a flow that conntrack knows, which the engine deletes (rule 38).
	apply("1")
	for _, a := range []string{"192.168.0.1:30080", "[fd00:192::1]:30080"} {
		if got, err := node.Ask("udp", netip.MustParseAddrPort(a), testnet.AnswerTimeout); err != nil || got.Server != "p1" {
			t.Errorf("%s with an endpoint: %+v, %v", a, got, err)
		}
	}
}
