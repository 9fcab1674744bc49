package nftables

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestEveryKindOfFrontendForwards(t *testing.T) {
	d := newTestEnv(t, 2)
	for _, proto := range []string{"TCP", "UDP"} {
		d.apply(service(
			frontend("10.96.0.10:80/"+proto+" ClusterIP masquerade=never", "1"),
			frontend("203.0.113.1:80/"+proto+" ExternalIP masquerade=never", "1"),
			frontend("203.0.113.2:80/"+proto+" LoadBalancer masquerade=never", "1"),
			frontend("*4:30080/"+proto+" NodePort masquerade=never", "1"),
			frontend("[fd00:10:96::a]:80/"+proto+" ClusterIP masquerade=never", "2"),
			frontend("[2001:db8:1::1]:80/"+proto+" ExternalIP masquerade=never", "2"),
			frontend("[2001:db8:1::2]:80/"+proto+" LoadBalancer masquerade=never", "2"),
			frontend("*6:30080/"+proto+" NodePort masquerade=never", "2"),
		))
		network := strings.ToLower(proto)
		for to, want := range map[string]string{
			"10.96.0.10:80": "p1", "203.0.113.1:80": "p1", "203.0.113.2:80": "p1", "192.168.0.1:30080": "p1",
			"[fd00:10:96::a]:80": "p2", "[2001:db8:1::1]:80": "p2", "[2001:db8:1::2]:80": "p2", "[fd00:192::1]:30080": "p2",
		} {
			for _, from := range []*testnet.Host{d.client, d.pods[1], d.pods[0], d.lab.Node} {
				if got := d.ask(from, network, to); got.Server != want {
					t.Errorf("%s asks %s %s: got %s, want %s", from.Name, network, to, got.Server, want)
				}
			}
		}
		for _, to := range []string{"192.168.7.7:30080", "[fd00:192::7]:30080"} {
			d.expectRefused(d.client, network, to) // an address of the node without NodePorts or listeners
		}
	}
}

func TestSourceRangesApplyToPodsToo(t *testing.T) {
	d := newTestEnv(t, 2)
	lb := func(key, ranges, pool string) string {
		return strings.Replace(frontend(key+" LoadBalancer masquerade=never", pool), "    forward", "    source-ranges "+ranges+"\n    forward", 1)
	}
	d.apply(service(
		lb("203.0.113.2:80/TCP", "10.244.0.2/32 198.51.100.0/28", "1"),
		lb("203.0.113.3:80/TCP", "198.51.100.16/28 255.0.0.0/8", "1"),
		lb("[2001:db8:1::2]:80/TCP", "2001:db8::/64", "1"),
		lb("[2001:db8:1::3]:80/TCP", "2001:db8:ffff::/64", "1"),
		frontend("203.0.113.4:80/TCP LoadBalancer masquerade=never", "1"),
	))
	d.ask(d.client, "tcp", "203.0.113.2:80")
	d.ask(d.pods[1], "tcp", "203.0.113.2:80")
	d.expectDropped(d.pods[0], "tcp", "203.0.113.2:80")
	d.expectDropped(d.lab.Node, "tcp", "203.0.113.2:80")
	d.expectDropped(d.client, "tcp", "203.0.113.3:80")
	d.ask(d.client, "tcp", "[2001:db8:1::2]:80")
	d.expectDropped(d.client, "tcp", "[2001:db8:1::3]:80")
	d.ask(d.pods[0], "tcp", "203.0.113.4:80")
}

func TestMasquerade(t *testing.T) {
	d := newTestEnv(t, 4)
	const key4, key6 = "10.96.0.10:80/TCP", "[fd00:10:96::a]:80/TCP"
	seen := func(from *testnet.Host, to string) bool {
		a := d.ask(from, "tcp", to)
		return a.Client.Addr() != from.Addr(a.Client.Addr())
	}
	noDetector := strings.NewReplacer("  pod-sources          10.244.0.0/16 fd00:10:244::/64\n", "")
	byInterface := strings.NewReplacer("  pod-sources          10.244.0.0/16 fd00:10:244::/64\n", "  pod-interfaces       v-p* v-p1\n")
	for _, test := range []struct {
		name, masquerade string
		change           *strings.Replacer
		pod, client      bool
	}{
		{name: "never", masquerade: "never"},
		{name: "outside", masquerade: "outside", client: true},
		{name: "outside by interface", masquerade: "outside", change: byInterface, client: true},
		{name: "outside without a detector", masquerade: "outside", change: noDetector},
		{name: "always", masquerade: "always", pod: true, client: true},
		{name: "from the node", masquerade: "from-node"},
	} {
		text := service(frontend(key4+" ClusterIP masquerade="+test.masquerade, "1"), frontend(key6+" ClusterIP masquerade="+test.masquerade, "1"))
		if test.change != nil {
			text = test.change.Replace(text)
		}
		d.apply(text)
		for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
			if got := seen(d.pods[2], to); got != test.pod {
				t.Errorf("%s: a Pod asks %s: masqueraded %v, want %v", test.name, to, got, test.pod)
			}
			if got := seen(d.client, to); got != test.client {
				t.Errorf("%s: a client outside asks %s: masqueraded %v, want %v", test.name, to, got, test.client)
			}
			d.ask(d.lab.Node, "tcp", to)
			// The endpoint itself could not accept its own address for an answer.
			if !seen(d.pods[0], to) {
				t.Errorf("%s: p1 asks %s and gets to itself without masquerade", test.name, to)
			}
		}
	}
	// Endpoints to which connections keep their source, except an endpoint's own.
	noMasquerade := strings.NewReplacer("  masquerade-mark ", "  no-masquerade-cidrs  10.244.0.0/30 fd00:10:244::/126\n  masquerade-mark ")
	for pool, want := range map[string]bool{"1": false, "4": true} {
		d.apply(noMasquerade.Replace(service(frontend(key4+" ClusterIP masquerade=always", pool), frontend(key6+" ClusterIP masquerade=always", pool))))
		for _, to := range []string{"10.96.0.10:80", "[fd00:10:96::a]:80"} {
			for _, from := range []*testnet.Host{d.pods[2], d.client} {
				if got := seen(from, to); got != want {
					t.Errorf("%s asks %s, no masquerade to p1: p%s is asked with masquerade %v", from.Name, to, pool, got)
				}
			}
			if pool == "1" && !seen(d.pods[0], to) {
				t.Errorf("p1 asks %s and gets to itself without masquerade", to)
			}
		}
	}
	// Use a source address on the node that the kernel would not choose.
	for masquerade, want := range map[string]bool{"never": false, "from-node": true, "always": true} {
		d.apply(service(frontend(key4+" ClusterIP masquerade="+masquerade, "1")))
		a, err := d.lab.Node.AskFrom("tcp", other4, netip.MustParseAddrPort("10.96.0.10:80"), timeout)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Client.Addr() != other4; got != want {
			t.Errorf("%s: the node asks from %s: p1 sees %s", masquerade, other4, a.Client)
		}
	}
}

func TestRejectAndDrop(t *testing.T) {
	d := newTestEnv(t, 1)
	d.apply(service(
		frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "reject"),
		frontend("10.96.0.11:80/TCP ClusterIP masquerade=never", "drop"),
		frontend("10.96.0.10:80/UDP ClusterIP masquerade=never", "reject"),
		frontend("*4:30080/TCP NodePort masquerade=never", "reject"),
		frontend("*4:30081/TCP NodePort masquerade=never", "drop"),
		frontend("[fd00:10:96::a]:80/TCP ClusterIP masquerade=never", "reject"),
		frontend("[fd00:10:96::b]:80/TCP ClusterIP masquerade=never", "drop"),
		frontend("[fd00:10:96::a]:80/UDP ClusterIP masquerade=never", "reject"),
		frontend("10.97.0.1:80/TCP ExternalIP masquerade=never", "1"),
	))
	for _, from := range []*testnet.Host{d.client, d.pods[0], d.lab.Node} {
		for _, to := range []string{
			"10.96.0.10:80", "192.168.0.1:30080", "[fd00:10:96::a]:80",
			"10.96.0.10:81", "10.96.0.11:9999", "[fd00:10:96::b]:81", // ports that the Service does not have
		} {
			d.expectRefused(from, "tcp", to)
		}
		d.expectRefused(from, "udp", "10.96.0.10:80")
		d.expectRefused(from, "udp", "[fd00:10:96::a]:80")
		for _, to := range []string{
			"10.96.0.11:80", "192.168.0.1:30081", "[fd00:10:96::b]:80",
			"10.96.9.9:80", "[fd00:10:96::99]:80", // addresses without a Service
		} {
			d.expectDropped(from, "tcp", to)
		}
	}
	// An external address in the ServiceCIDR has a frontend, so packets to its other ports are not dropped: the node
	// does not have the address and forwards them.
	if got := d.ask(d.client, "tcp", "10.97.0.1:80"); got.Server != "p1" {
		t.Errorf("got %+v", got)
	}
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.ask(d.client, "tcp", "10.96.0.10:80")
}

func TestNodesUDPToNodePortsWithoutEndpointsIsRefused(t *testing.T) {
	d := newTestEnv(t, 1)
	testbed.ExpectNodePortsRefuseUDP(t, d.lab.Node, func(pool string) {
		d.apply(service(frontend("*4:30080/UDP NodePort masquerade=always", pool), frontend("*6:30080/UDP NodePort masquerade=always", pool)))
	})
}

func TestSourcesOutsideTheClusterHaveTheirOwnPool(t *testing.T) {
	d := newTestEnv(t, 4)
	lb := "203.0.113.2:80/TCP LoadBalancer masquerade=from-node"
	np := "*4:30080/TCP NodePort masquerade=from-node"
	np6 := "*6:30080/TCP NodePort masquerade=from-node"
	none := "203.0.113.3:80/TCP LoadBalancer masquerade=from-node"
	text := service(
		frontend(lb, "1 2"), outsidePool(lb, "3 4"), frontend(np, "1 2"), outsidePool(np, "3"),
		frontend(np6, "1"), outsidePool(np6, "4"), frontend(none, "1"), outsidePool(none, "drop"))
	byInterface := strings.Replace(text, "  pod-sources          10.244.0.0/16 fd00:10:244::/64\n", "  pod-interfaces       v-p*\n", 1)
	for name, text := range map[string]string{"by range": text, "by interface": byInterface} {
		d.apply(text)
		for to, want := range map[string][2]string{
			"203.0.113.2:80": {"p1 p2", "p3 p4"}, "192.168.0.1:30080": {"p1 p2", "p3"}, "[fd00:192::1]:30080": {"p1", "p4"},
		} {
			for range 8 {
				for _, from := range []*testnet.Host{d.pods[2], d.lab.Node, d.client} {
					pool := want[0]
					if from == d.client {
						pool = want[1]
					}
					a := d.ask(from, "tcp", to)
					if !strings.Contains(pool, a.Server) {
						t.Errorf("%s: %s asks %s: got %s, want one of %s", name, from.Name, to, a.Server, pool)
					}
					if own := from.Addr(a.Client.Addr()); from != d.lab.Node && a.Client.Addr() != own {
						t.Errorf("%s: %s asks %s: its address was lost: %s", name, from.Name, to, a.Client)
					}
				}
			}
		}
		d.expectDropped(d.client, "tcp", "203.0.113.3:80")
		d.ask(d.pods[1], "tcp", "203.0.113.3:80")
	}
}

func TestNodeAddressInPodRangeIsNotMasqueraded(t *testing.T) {
	d := newTestEnv(t, 2)
	bridge := netip.MustParseAddr("10.244.0.254")
	if err := d.lab.Node.AddAddr("lo", bridge); err != nil {
		t.Fatal(err)
	}
	key := "203.0.113.2:80/TCP LoadBalancer masquerade=from-node"
	d.apply(service(frontend(key, "1"), outsidePool(key, "2")))
	for from, want := range map[netip.Addr]bool{bridge: false, other4: true} {
		a, err := d.lab.Node.AskFrom("tcp", from, netip.MustParseAddrPort("203.0.113.2:80"), timeout)
		if err != nil || a.Server != "p1" || (a.Client.Addr() != from) != want {
			t.Errorf("the node asks from %s: got %+v, %v; masqueraded wanted: %v", from, a, err, want)
		}
	}
}

func TestEstablishedConnectionsSurviveEveryChange(t *testing.T) {
	d := newTestEnv(t, 2)
	const key, to = "10.96.0.10:80/TCP ClusterIP masquerade=never", "10.96.0.10:80"
	d.apply(service(frontend(key, "1")))
	c, err := d.client.Dial(context.Background(), "tcp", netip.MustParseAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if a, err := testnet.Greeting(c); err != nil || a.Server != "p1" {
		t.Fatalf("got %+v, %v", a, err)
	}
	echo := func(when string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(timeout))
		buf := make([]byte, len(when))
		if _, err := c.Write([]byte(when)); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != when {
			t.Fatalf("%s: %q, %v", when, buf[:n], err)
		}
	}
	for _, pool := range []string{"1*3 2", "2", "reject", "drop", "1 2*5"} {
		d.apply(service(frontend(key, pool)))
		echo("after " + pool)
	}
	d.apply(global)
	echo("without the Service")
	if _, err := Cleanup(context.Background(), d.lab.Node.Fd()); err != nil {
		t.Fatal(err)
	}
	d.expectNoAnswer(to)
}

// expectNoAnswer checks that nothing answers.
func (d *testEnv) expectNoAnswer(to string) {
	d.Helper()
	if a, err := d.client.Ask("tcp", netip.MustParseAddrPort(to), 200*time.Millisecond); err == nil {
		d.Errorf("%s is answered by %+v", to, a)
	}
}

func TestPacketsToLocalhostNodePortsAreRefusedAndCounted(t *testing.T) {
	d := newTestEnv(t, 1)
	testbed.ExpectLocalhostNodePortsRefuse(t, d.lab.Node, func(text string) {
		d.restart() // the counters stay
		d.apply(text)
	}, func() map[string]uint64 {
		return refusedAtLocalhost(t, d.lab.Node.Fd())
	})
}

// refusedAtLocalhost returns the counters by family and protocol.
func refusedAtLocalhost(t testing.TB, netns int) map[string]uint64 {
	t.Helper()
	counts, err := ReadLocalhostRefused(context.Background(), netns)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]uint64{"IPv4 UDP": counts[0].UDP, "IPv4 SCTP": counts[0].SCTP, "IPv6 UDP": counts[1].UDP, "IPv6 SCTP": counts[1].SCTP}
}
