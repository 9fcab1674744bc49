package rules

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/plan"
)

const global = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  service-cidrs        10.96.0.0/12 fd00:10:96::/112
  masquerade-mark      0x4000

`

// ofMembers writes members of port 9000: "1*3 2" is p1 with weight 3 and p2 with weight 1.
func ofMembers(key, list string) string {
	var b strings.Builder
	for _, w := range strings.Fields(list) {
		n, weight, ok := strings.Cut(w, "*")
		if !ok {
			weight = "1"
		}
		addr := "10.244.0." + n
		if strings.Contains(key, "[") || strings.HasPrefix(key, "*6") {
			addr = "[fd00:10:244::" + n + "]"
		}
		fmt.Fprintf(&b, "      %s:9000  weight %s\n", addr, weight)
	}
	return b.String()
}

// frontend writes one frontend: "10.96.0.10:80/TCP ClusterIP masquerade=never" with members as above, or a verdict.
func frontend(line, pool string) string {
	s := "  port http  " + line
	if !strings.Contains(line, "balance=") {
		s += " balance=random"
	}
	if pool == "reject" || pool == "drop" {
		return s + "\n    " + pool + "\n"
	}
	return s + "\n    forward\n" + ofMembers(line, pool)
}

func outsidePool(key, pool string) string {
	if pool == "reject" || pool == "drop" {
		return "    outside " + pool + "\n"
	}
	return "    outside forward\n" + ofMembers(key, pool)
}

func service(parts ...string) string { return global + "service shop/web\n" + strings.Join(parts, "") }

func TestEveryKindOfFrontendForwards(t *testing.T) {
	d := newBed(t, 2)
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
			d.refused(d.client, network, to) // an address of the node without NodePorts, and nothing listens there
		}
	}
}

func TestSourceRangesDropOthersPodsToo(t *testing.T) {
	d := newBed(t, 2)
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
	d.dropped(d.pods[0], "tcp", "203.0.113.2:80")
	d.dropped(d.lab.Node, "tcp", "203.0.113.2:80")
	d.dropped(d.client, "tcp", "203.0.113.3:80")
	d.ask(d.client, "tcp", "[2001:db8:1::2]:80")
	d.dropped(d.client, "tcp", "[2001:db8:1::3]:80")
	d.ask(d.pods[0], "tcp", "203.0.113.4:80")
}

func TestMasquerade(t *testing.T) {
	d := newBed(t, 3)
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
			// The member itself could not take its own address for an answer.
			if !seen(d.pods[0], to) {
				t.Errorf("%s: p1 asks %s and gets to itself without masquerade", test.name, to)
			}
		}
	}
	// What a source on the node itself looks like shows with an address that is not what the kernel would choose.
	for masquerade, want := range map[string]bool{"never": false, "from-node": true, "always": true} {
		d.apply(service(frontend(key4+" ClusterIP masquerade="+masquerade, "1")))
		a, err := d.lab.Node.AskFrom("tcp", other4, netip.MustParseAddrPort("10.96.0.10:80"), soon)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Client.Addr() != other4; got != want {
			t.Errorf("%s: the node asks from %s: p1 sees %s", masquerade, other4, a.Client)
		}
	}
}

func TestRejectIsQuickAndDropIsNot(t *testing.T) {
	d := newBed(t, 1)
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
			d.refused(from, "tcp", to)
		}
		d.refused(from, "udp", "10.96.0.10:80")
		d.refused(from, "udp", "[fd00:10:96::a]:80")
		for _, to := range []string{
			"10.96.0.11:80", "192.168.0.1:30081", "[fd00:10:96::b]:80",
			"10.96.9.9:80", "[fd00:10:96::99]:80", // addresses that no Service has
		} {
			d.dropped(from, "tcp", to)
		}
	}
	// An external address in the range is a frontend's, so its other ports are not ours to drop: the node has no such
	// address and sends them on.
	if got := d.ask(d.client, "tcp", "10.97.0.1:80"); got.Server != "p1" {
		t.Errorf("got %+v", got)
	}
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	d.ask(d.client, "tcp", "10.96.0.10:80")
}

func TestOutsideSourcesGetTheirOwnPool(t *testing.T) {
	d := newBed(t, 4)
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
		d.dropped(d.client, "tcp", "203.0.113.3:80")
		d.ask(d.pods[1], "tcp", "203.0.113.3:80")
	}
}

func TestANodeAddressInThePodRangeIsNotMasqueraded(t *testing.T) {
	d := newBed(t, 2)
	bridge := netip.MustParseAddr("10.244.0.254")
	if err := d.lab.Node.AddAddr("lo", bridge); err != nil {
		t.Fatal(err)
	}
	key := "203.0.113.2:80/TCP LoadBalancer masquerade=from-node"
	d.apply(service(frontend(key, "1"), outsidePool(key, "2")))
	for from, want := range map[netip.Addr]bool{bridge: false, other4: true} {
		a, err := d.lab.Node.AskFrom("tcp", from, netip.MustParseAddrPort("203.0.113.2:80"), soon)
		if err != nil || a.Server != "p1" || (a.Client.Addr() != from) != want {
			t.Errorf("the node asks from %s: got %+v, %v; masqueraded wanted: %v", from, a, err, want)
		}
	}
}

func TestConnectionsShareOutByWeight(t *testing.T) {
	d := newBed(t, 4)
	for i, weights := range [][]int{{1, 1, 1}, {1, 3}, {1, 2, 5, 1}, {13, 700, 1, 250}} {
		var list string
		sum := 0
		for j, w := range weights {
			list += fmt.Sprintf(" %d*%d", j+1, w)
			sum += w
		}
		key, to := "10.96.0.10:80/TCP", "10.96.0.10:80"
		if i%2 == 1 {
			key, to = "[fd00:10:96::a]:80/TCP", "[fd00:10:96::a]:80"
		}
		d.apply(service(frontend(key+" ClusterIP masquerade=never", list)))
		const n = 2500
		got := map[string]float64{}
		for range n {
			got[d.ask(d.client, "tcp", to).Server]++
		}
		chi := 0.0
		for j, w := range weights {
			due := n * float64(w) / float64(sum)
			chi += math.Pow(got[fmt.Sprintf("p%d", j+1)]-due, 2) / due
		}
		// 4.75 standard deviations out, by Wilson and Hilferty: once in a million runs of a fair one.
		df := float64(len(weights) - 1)
		if limit := df * math.Pow(1-2/(9*df)+4.75*math.Sqrt(2/(9*df)), 3); chi > limit {
			t.Errorf("weights %v: χ² is %.1f, over %.1f: %v", weights, chi, limit, got)
		}
	}
}

func TestEstablishedConnectionsOutliveEveryChange(t *testing.T) {
	d := newBed(t, 2)
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
		_ = c.SetDeadline(time.Now().Add(soon))
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
	d.refusedOrLost(to)
}

// refusedOrLost checks that nothing answers.
func (d *bed) refusedOrLost(to string) {
	d.Helper()
	if a, err := d.client.Ask("tcp", netip.MustParseAddrPort(to), 200*time.Millisecond); err == nil {
		d.Errorf("%s is answered by %+v", to, a)
	}
}

func TestAffinity(t *testing.T) {
	d := newBed(t, 4)
	lines := func(pool, local string) string {
		const lb, np6 = "203.0.113.2:80/TCP LoadBalancer masquerade=never affinity=1s", "*6:30080/TCP NodePort masquerade=never affinity=1s"
		return service(
			frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity=1s", pool),
			frontend(lb, pool), outsidePool(lb, local),
			frontend("*4:30080/TCP NodePort masquerade=never affinity=1s", pool),
			frontend(np6, pool), frontend("[fd00:10:96::a]:80/TCP ClusterIP masquerade=never affinity=1s", pool))
	}
	d.apply(lines("1 2 3 4", "1 2 3 4"))
	const cluster, node = "10.96.0.10:80", "192.168.0.1:30080"
	// stays asks again. Where this process was not run for so long that the time was out, anybody may answer.
	asked := time.Now()
	stays := func(what, to string, before *string) {
		t.Helper()
		last := asked
		asked = time.Now()
		if got := d.ask(d.client, "tcp", to).Server; got != *before {
			if time.Since(last) < time.Second {
				t.Fatalf("%s: went to %s, before to %s", what, got, *before)
			}
			*before = got
		}
	}
	// Sticks, across the frontends of the Service port, and slides: two seconds in all with a second's time-out.
	first := d.ask(d.client, "tcp", cluster).Server
	for range 8 {
		time.Sleep(250 * time.Millisecond)
		for _, to := range []string{cluster, node, "203.0.113.2:80"} {
			stays(to, to, &first)
		}
	}
	asked = time.Now()
	six := d.ask(d.client, "tcp", "[fd00:10:96::a]:80").Server
	for range 8 {
		stays("IPv6", "[fd00:192::1]:30080", &six)
	}
	// Weights change, members come: it stays.
	asked = time.Now()
	first = d.ask(d.client, "tcp", cluster).Server
	d.apply(lines("1*5 2*7 3*11 4*13", "1 2 3 4"))
	stays("after new weights", cluster, &first)
	// Expires.
	seen := map[string]bool{}
	for range 12 {
		time.Sleep(1200 * time.Millisecond)
		if seen[d.ask(d.client, "tcp", cluster).Server] = true; len(seen) > 1 {
			break
		}
	}
	if len(seen) == 1 {
		t.Errorf("never expires: always %v", seen)
	}
	// The member leaves one path only: there another one is found, and elsewhere the client stays.
	first = d.ask(d.client, "tcp", cluster).Server
	others := strings.TrimSpace(strings.Replace("1 2 3 4", strings.TrimPrefix(first, "p"), "", 1))
	d.apply(lines("1 2 3 4", others))
	if got := d.ask(d.client, "tcp", "203.0.113.2:80").Server; got == first {
		t.Errorf("outside: still goes to %s, which is not in that pool", got)
	}
	// The member leaves: the client moves, and when it is back, the client does not go back.
	second := d.ask(d.client, "tcp", cluster).Server
	others = strings.TrimSpace(strings.Replace("1 2 3 4", strings.TrimPrefix(second, "p"), "", 1))
	d.apply(lines(others, others))
	third := d.ask(d.client, "tcp", cluster).Server
	if third == second {
		t.Errorf("still goes to %s, which has left", second)
	}
	asked = time.Now()
	third = d.ask(d.client, "tcp", cluster).Server
	d.apply(lines("1 2 3 4", "1 2 3 4"))
	for range 5 {
		stays("it came back", cluster, &third)
	}
}

func TestAffinityIsForgottenTwice(t *testing.T) {
	d := newBed(t, 2)
	const key = "10.96.0.10:80/TCP ClusterIP masquerade=never affinity=3h"
	all := parse(t, service(frontend(key, "1 2")))
	d.mustApply(all, nil)
	first := d.ask(d.client, "tcp", "10.96.0.10:80").Server
	other := map[string]string{"p1": "2", "p2": "1"}[first]
	one := parse(t, service(frontend(key, other)))
	r, err := d.b.Apply(context.Background(), one, plan.Diff(all, one))
	if err != nil || r.RequeueAfter <= 0 {
		t.Fatalf("report %+v, %v: want to be called again", r, err)
	}
	// Someone was on the way to the old member all the while, and is noted only now.
	late := fmt.Sprintf("add element ip sluice affinity_0 { 198.51.100.9 . 0:1 timeout 1h : 10.244.0.%s . 9000 }", strings.TrimPrefix(first, "p"))
	if out, err := d.nft(late, "-f", "-"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if r, err = d.b.Apply(context.Background(), one, &plan.Delta{}); err != nil || r.RequeueAfter <= 0 || r.Messages > 0 {
		t.Fatalf("too early: %+v, %v", r, err)
	}
	d.clock.t = d.clock.t.Add(r.RequeueAfter)
	if r, err = d.b.Apply(context.Background(), one, &plan.Delta{}); err != nil || r.RequeueAfter != 0 || r.Elements != 1 {
		t.Fatalf("when due: %+v, %v", r, err)
	}
	if got := d.ask(d.client, "tcp", "10.96.0.10:80").Server; got == first {
		t.Errorf("went to %s, which has left", got)
	}
}

func TestSourceHashKeepsClientsWhileTheirMemberStays(t *testing.T) {
	d := newBed(t, 4)
	const line = "10.96.0.10:80/TCP ClusterIP masquerade=never balance=source-hash"
	const line6 = "[fd00:10:96::a]:80/TCP ClusterIP masquerade=never balance=source-hash"
	var clients []netip.Addr
	for i := range 200 {
		a := netip.AddrFrom4([4]byte{192, 168, 100, byte(i + 1)})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 0, 1, 0x92, 15: byte(i + 1)})
		}
		if err := d.lab.Node.AddAddr("lo", a); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, a)
	}
	where := func() (seen []string) {
		for _, c := range clients {
			to := "10.96.0.10:80"
			if c.Is6() {
				to = "[fd00:10:96::a]:80"
			}
			a, err := d.lab.Node.AskFrom("tcp", c, netip.MustParseAddrPort(to), soon)
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, a.Server)
		}
		return seen
	}
	count := func(seen []string, server string) (n int) {
		for _, s := range seen {
			if s == server {
				n++
			}
		}
		return n
	}
	d.apply(service(frontend(line, "1 2 3*2"), frontend(line6, "1 2 3*2")))
	before := where()
	if again := where(); !slices.Equal(before, again) {
		t.Error("the same client does not always get the same member")
	}
	for server, due := range map[string]int{"p1": 50, "p2": 50, "p3": 100} {
		if n := count(before, server); n < due-28 || n > due+28 { // four standard deviations
			t.Errorf("%s has %d of 200 clients, due %d", server, n, due)
		}
	}
	// p2 leaves: its clients move, of the others only those whose slots the shares of the others took.
	d.apply(service(frontend(line, "1 3*2"), frontend(line6, "1 3*2")))
	after := where()
	moved := 0
	for i := range before {
		if after[i] == "p2" {
			t.Fatalf("%s still goes to p2", clients[i])
		}
		if before[i] != "p2" && after[i] != before[i] {
			moved++
		}
	}
	if moved > 10 {
		t.Errorf("%d of %d clients of other members moved", moved, 200-count(before, "p2"))
	}
	t.Logf("%d clients of other members moved", moved)
	if out, err := d.nft("", "list", "ruleset"); err != nil || !strings.Contains(out, "jhash ip saddr mod 1024 seed 0x1 map @slots") {
		t.Errorf("nft list ruleset: %v\n%s", err, out)
	}
}
