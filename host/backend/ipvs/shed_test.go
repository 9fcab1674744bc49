package ipvs

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

// TestShedConnectionsAreReset: the connections to an endpoint that a shed selects by their hash are reset, and no others.
func TestShedConnectionsAreReset(t *testing.T) {
	d := newEnv(t)
	p := web(t, 1, 1)
	d.apply(d.open(), p, nil)
	to := netip.MustParseAddrPort("10.96.0.80:80")
	shed := plan.Shed{Frontends: p.Keys(), Endpoint: netip.MustParseAddrPort("10.244.0.1:9000"), Seed: 1, To: plan.ShedSpace / 2, Until: plan.ShedSpace / 2}
	type connection struct {
		net.Conn
		selected bool
	}
	var all []connection
	selected, spared, others := 0, 0, 0
	for len(all) < 300 && (selected < 5 || spared < 5 || others < 5) {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		c, err := d.Client.Dial(ctx, "tcp", to)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(askTimeout))
		a, err := testnet.Greeting(c)
		if err != nil {
			t.Fatal(err)
		}
		client := netip.MustParseAddrPort(c.LocalAddr().String())
		hit := uint64(plan.ShedHash(shed.Seed, client, to)) < shed.To
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
	if selected < 5 || spared < 5 || others < 5 {
		t.Fatalf("%d, %d and %d connections", selected, spared, others)
	}
	if err := d.Lab.Node.Do(func() error {
		table := &conntrack.Table{}
		n, deferred, err := table.Shed(context.Background(), []plan.Shed{shed})
		if n != selected || deferred != nil {
			t.Errorf("%d connections were shed, want %d; deferred %v", n, selected, deferred)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		_ = c.SetDeadline(time.Now().Add(askTimeout))
		_, err := c.Write([]byte("still there\n"))
		if err == nil {
			_, err = c.Read(make([]byte, 12))
		}
		if c.selected != errors.Is(err, unix.ECONNRESET) || !c.selected && err != nil {
			t.Errorf("the connection of %s: %v, selected: %t", c.LocalAddr(), err, c.selected)
		}
	}
}
