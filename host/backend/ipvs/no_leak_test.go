package ipvs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// strayCounters counts packets to Service addresses that leave the node. There should be none: 10.96/16 is a Service
// CIDR, and packets to it are dropped if there is no frontend. Replies to the node itself are not counted. They are
// sent to the Service address, which is its source address, and the clock of this test removes the address without
// waiting for them.
const strayCounters = `table ip strays {
	chain out {
		type filter hook postrouting priority 300; policy accept;
		ip daddr 10.96.0.0/16 ip protocol udp ct direction original counter
		ip daddr 10.96.0.0/16 ip protocol tcp tcp flags & (syn | rst | fin) == syn counter
	}
}
`

// TestNoPacketToAVIPLeavesTheNodeUntranslated adds and removes frontends while clients, Pods and the node send packets
// to them, and counts the packets that leave by the default route.
func TestNoPacketToAVIPLeavesTheNodeUntranslated(t *testing.T) {
	d := newEnv(t)
	text := strings.Replace(globalSection, "global\n", "global\n  service-cidrs        10.96.0.0/16\n", 1)
	parse := func(body string) *plan.Plan {
		p, err := plan.Parse(text + body)
		if err == nil {
			err = plan.Validate(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none := parse("")
	some := parse(`service shop/web
  port dns   10.96.0.80:53/UDP   ClusterIP     masquerade=outside balance=random
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
  port http  10.96.0.80:80/TCP   ClusterIP     masquerade=outside balance=random
    forward 2 endpoints, total 2
      10.244.0.2:9000  weight 1  50.0 %  active
      10.244.0.3:9000  weight 1  50.0 %  active
  port none  10.96.0.81:80/TCP   ClusterIP     masquerade=outside balance=random
    reject 0 endpoints, total 0
`)
	o := d.options()
	o.DrainTimeout = drainInterval // cuts off closing connections
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	d.apply(b, none, nil)
	if _, err := d.run(strayCounters, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var sent, answered, refused atomic.Int64
	var all sync.WaitGroup
	flood := func(h *testnet.Host, network, to string) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				_, err := h.Ask(network, netip.MustParseAddrPort(to), 20*time.Millisecond)
				switch {
				case err == nil:
					answered.Add(1)
				case testnet.Refused(err):
					refused.Add(1)
				}
			}
		})
	}
	for _, h := range []*testnet.Host{d.Client, d.Pods[0], d.Lab.Node} {
		flood(h, "udp", "10.96.0.80:53")
		flood(h, "tcp", "10.96.0.80:80")
		flood(h, "tcp", "10.96.0.81:80")
	}
	to, from := plan.Diff(none, some), plan.Diff(some, none)
	turns, gone := 0, 0
	least := 100
	if testing.Short() {
		least = 20
	}
	seen := func() bool { return gone > 0 && answered.Load() > 0 && refused.Load() > 0 }
	for begin := time.Now(); turns < least || !seen() && time.Since(begin) < time.Minute; turns++ {
		for _, step := range []struct {
			next  *plan.Plan
			delta *plan.Delta
		}{{some, to}, {none, from}, {none, &plan.Delta{}}} {
			if turns%5 == 4 {
				step.delta = nil
			}
			if _, err := b.Apply(context.Background(), step.next, step.delta); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond) // pace of changes
			if step.next == none && len(b.state.bound) == 0 {
				gone++
			}
			d.now = d.now.Add(2 * drainInterval) // by then the address is removed too
		}
	}
	close(stop)
	all.Wait()
	if gone == 0 {
		t.Error("the addresses were never removed")
	}
	out, err := d.run("", "nft", "list", "table", "ip", "strays")
	// Only packets that open a connection: without the short drain timeout, others would still be translated.
	if err != nil || strings.Count(out, "counter packets 0 ") != 2 {
		t.Errorf("packets left the node: %s %v", out, err)
	}
	t.Logf("%d turns, %d connections, %d answered, %d refused", turns, sent.Load(), answered.Load(), refused.Load())
	if answered.Load() == 0 || refused.Load() == 0 {
		t.Error("connections were not both answered and refused")
	}
	d.apply(b, some, nil)
	for _, h := range []*testnet.Host{d.Client, d.Pods[0], d.Lab.Node} {
		if a := d.ask(h, "tcp", "10.96.0.80:80"); a.Client.Addr() == netip.MustParseAddr("10.96.0.80") {
			t.Errorf("%s appears as the Service itself", h.Name)
		}
	}
}

// TestADrainingFwmarkServiceKeepsItsVIP: the kernel does not know the VIP of a fwmark service.
func TestADrainingFwmarkServiceKeepsItsVIP(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev := parse(t, `service shop/web
  port http  203.0.113.5:80/TCP  LoadBalancer  masquerade=from-node balance=random
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
    outside drop
`)
	none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	d.apply(b, prev, nil)
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	conn, err := d.Pods[0].Dial(ctx, "tcp", netip.MustParseAddrPort("203.0.113.5:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := testnet.Greeting(conn); err != nil {
		t.Fatal(err)
	}
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	left := func(what string) {
		t.Helper()
		if err := checkAlive(conn); err != nil || !strings.Contains(d.linkAddrs(), "203.0.113.5/32") {
			t.Errorf("%s: the connection: %v, %s", what, err, d.linkAddrs())
		}
		if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout); !testnet.Refused(err) {
			t.Errorf("%s: connected to the node's own server: %v, want a rejection", what, err)
		}
	}
	d.apply(b, none, plan.Diff(prev, none))
	left("the frontend is removed")
	b.Close()
	b = d.open()
	d.apply(b, none, nil)
	left("after a restart")
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
	time.Sleep(50 * time.Millisecond) // time passes: the RST is on its way
	d.settle(b, none)
	if out := d.linkAddrs() + d.ipvsadmSave(); strings.Contains(out, "203.0.113.5") || strings.Contains(out, "-A") {
		t.Errorf("left: %s", out)
	}
}
