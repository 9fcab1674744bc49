package rules

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

// TestShedConnectionsAreBalancedAgain: the connections to an endpoint that a shed selects by their hash are balanced again with their
// next packet. They are reset, unless they are not masqueraded and get to the same endpoint, where they go on. No others are touched.
func TestShedConnectionsAreBalancedAgain(t *testing.T) {
	d := newTestEnv(t, 2)
	for _, masquerade := range []string{"always", "never"} {
		p := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade="+masquerade, "1 2")))
		to := netip.MustParseAddrPort("10.96.0.10:80")
		shed := plan.Shed{Frontends: p.Keys(), Endpoint: netip.MustParseAddrPort("10.244.0.1:9000"), Seed: 1, To: plan.ShedSpace / 2, Until: plan.ShedSpace / 2}
		type connection struct {
			net.Conn
			selected bool
		}
		var all []connection
		selected, spared, others := 0, 0, 0
		for len(all) < 300 && (selected < 8 || spared < 8 || others < 8) {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			c, err := d.client.Dial(ctx, "tcp", to)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
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
		if err := d.lab.Node.Do(func() error {
			n, deferred, err := (&conntrack.Table{}).Shed(context.Background(), []plan.Shed{shed})
			if n != selected || deferred != nil {
				t.Errorf("%d connections were shed, want %d; deferred %v", n, selected, deferred)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		reset := 0
		for _, c := range all {
			_ = c.SetDeadline(time.Now().Add(timeout))
			_, err := c.Write([]byte("still there\n"))
			if err == nil {
				_, err = c.Read(make([]byte, 12))
			}
			switch {
			case c.selected && errors.Is(err, unix.ECONNRESET):
				reset++
			case err != nil:
				t.Errorf("masquerade %s: the connection of %s: %v, selected: %t", masquerade, c.LocalAddr(), err, c.selected)
			}
		}
		if reset == 0 || masquerade == "always" && reset != selected {
			t.Errorf("masquerade %s: %d of %d connections were reset", masquerade, reset, selected)
		}
		t.Logf("masquerade %s: %d of %d selected connections were reset, %d others went on", masquerade, reset, selected, len(all)-selected)
	}
}
