package testbed

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Shed opens connections from client to a frontend of p, sheds half of those to endpoint 10.244.0.1:9000, which must be p1, and
// sends on all of them. It returns how many were selected, and how many of these were reset. All others must go on.
func Shed(t *testing.T, node, client *testnet.Host, p *plan.Plan, to netip.AddrPort) (selected, reset int) {
	t.Helper()
	const limit, least = 10 * time.Second, 8
	shed := plan.Shed{Frontends: p.Keys(), Endpoint: netip.MustParseAddrPort("10.244.0.1:9000"), Seed: 1, To: plan.ShedSpace / 2, Until: plan.ShedSpace / 2}
	type connection struct {
		net.Conn
		selected bool
	}
	var all []connection
	spared, others := 0, 0
	for len(all) < 300 && (selected < least || spared < least || others < least) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		c, err := client.Dial(ctx, "tcp", to)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(limit))
		a, err := testnet.Greeting(c)
		if err != nil {
			t.Fatal(err)
		}
		hit := uint64(plan.ShedHash(shed.Seed, netip.MustParseAddrPort(c.LocalAddr().String()), to)) < shed.To
		switch {
		case a.Server != "p1":
			others++
		case hit:
			selected++
		default:
			spared++
		}
		all = append(all, connection{c, hit && a.Server == "p1"})
	}
	if selected < least || spared < least || others < least {
		t.Fatalf("%d, %d and %d connections", selected, spared, others)
	}
	if err := node.Do(func() error {
		n, deferred, err := (&conntrack.Table{}).Shed(t.Context(), []plan.Shed{shed})
		if n != selected || deferred != nil {
			t.Errorf("%d connections were shed, want %d; deferred %v", n, selected, deferred)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		_ = c.SetDeadline(time.Now().Add(limit))
		_, err := c.Write([]byte("still there\n"))
		if err == nil {
			_, err = c.Read(make([]byte, 12))
		}
		switch {
		case c.selected && errors.Is(err, unix.ECONNRESET):
			reset++
		case err != nil:
			t.Errorf("the connection of %s: %v, selected: %t", c.LocalAddr(), err, c.selected)
		}
	}
	t.Logf("%d of %d selected connections were reset, %d others went on", reset, selected, len(all)-selected)
	return selected, reset
}
