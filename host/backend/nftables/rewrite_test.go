package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestRewritesUnderLoadLoseNoConnection rewrites one Service 10,000 times back to back, with other endpoints, weights
// and size classes, under load. p1 is always an endpoint, p4 never, and the UDP frontend switches between endpoints and
// none. SLUICE_REWRITES=N does more.
func TestRewritesUnderLoadLoseNoConnection(t *testing.T) {
	rewrites := 10_000
	if testing.Short() {
		rewrites = 1000
	}
	if n, err := strconv.Atoi(os.Getenv("SLUICE_REWRITES")); err == nil {
		rewrites = n
	}
	d := newTestEnv(t, 4)
	var plans []*plan.Plan
	for _, pool := range []string{
		"1", "1 2", "1 2 3", "1*3 2", "1 3", "1*7 2*5 3*3", "1*100 2*300 3", "1 2*2", "1*2 3*31", "1", "1*65 2*63 3*1", "1*9 2*9 3*9",
	} {
		both := frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", pool)
		for _, other := range []string{pool, "reject"} {
			plans = append(plans, parse(t, service(both, frontend("10.96.0.10:80/UDP ClusterIP masquerade=never", other))))
		}
	}
	d.mustApply(plans[0], nil)
	before := d.synRetransmits(d.client) + d.synRetransmits(d.pods[3])
	var done atomic.Bool
	var connections [2]atomic.Int64
	var load sync.WaitGroup
	for i, network := range []string{"tcp", "tcp", "udp"} {
		from := []*testnet.Host{d.client, d.pods[3], d.client}[i]
		load.Go(func() {
			for !done.Load() {
				a, err := from.Ask(network, netip.MustParseAddrPort("10.96.0.10:80"), timeout)
				switch {
				case network == "udp" && testnet.Refused(err):
				case err != nil:
					t.Errorf("%s over %s: connection failed: %v", from.Name, network, err)
					return
				case a.Server == "p4" || !strings.HasPrefix(a.Server, "p"):
					t.Errorf("%s over %s: answered by %q", from.Name, network, a.Server)
					return
				}
				connections[i/2].Add(1)
			}
		})
	}
	prev := plans[0]
	begin := time.Now()
	// A machine that is slow to connect rewrites for longer.
	enough := int64(rewrites / 20)
	made := 0
	for i := 0; i < rewrites || connections[0].Load() < enough && time.Since(begin) < 5*time.Minute; i++ {
		next := plans[(i*7+i/len(plans))%len(plans)]
		if _, err := d.b.Apply(context.Background(), next, plan.Diff(prev, next)); err != nil {
			t.Fatalf("rewrite %d: %v", i, err)
		}
		prev = next
		made++
		if t.Failed() {
			break
		}
	}
	took := time.Since(begin)
	done.Store(true)
	load.Wait()
	// A kernel under test has one CPU. It may be away for so long that SYNs are retransmitted without being lost.
	if n := d.synRetransmits(d.client) + d.synRetransmits(d.pods[3]) - before; n > 0 && os.Getenv("SLUICE_VM") == "" {
		t.Errorf("%d SYNs were lost", n)
	}
	d.expectPlan(prev)
	t.Logf("%d rewrites in %s, %d TCP connections and %d UDP exchanges meanwhile", made, took.Round(time.Millisecond), connections[0].Load(), connections[1].Load())
	if connections[0].Load() < enough {
		t.Errorf("only %d connections in %s", connections[0].Load(), took)
	}
	// The last rule of the pools chain, which drops what no slot table had, must not have matched.
	out, err := d.nft("", "list", "chain", "ip", "sluice", "pools")
	if err != nil || !strings.Contains(out, "counter packets 0 bytes 0 drop") {
		t.Errorf("packets fell through all passes: %s %v", out, err)
	}
}

func TestRemovedEndpointGetsNoNewConnections(t *testing.T) {
	d := newTestEnv(t, 4)
	prev := d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2 3 4")))
	changes := 400
	if testing.Short() {
		changes = 80
	}
	for i := range changes {
		gone := 1 + i%4
		var pool string
		for n := 1; n <= 4; n++ {
			if n != gone {
				pool += fmt.Sprintf(" %d*%d", n, 1+(i*n)%5)
			}
		}
		next := parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", pool)))
		d.mustApply(next, plan.Diff(prev, next))
		prev = next
		for range 3 {
			if a := d.ask(d.client, "tcp", "10.96.0.10:80"); a.Server == fmt.Sprintf("p%d", gone) {
				t.Fatalf("change %d: p%d was removed and got a new connection", i, gone)
			}
		}
	}
}
