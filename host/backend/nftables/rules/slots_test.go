package rules

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestConnectionsAreBalancedByWeight(t *testing.T) {
	d := newTestEnv(t, 4)
	n := 2500
	if testing.Short() { // in a virtual machine a connection takes 4 ms
		n = 500
	}
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
		got := map[string]float64{}
		for range n {
			got[d.ask(d.client, "tcp", to).Server]++
		}
		chi := 0.0
		for j, w := range weights {
			due := float64(n) * float64(w) / float64(sum)
			chi += math.Pow(got[fmt.Sprintf("p%d", j+1)]-due, 2) / due
		}
		// 4.75 standard deviations, by Wilson and Hilferty: a fair one fails once in a million runs.
		df := float64(len(weights) - 1)
		if limit := df * math.Pow(1-2/(9*df)+4.75*math.Sqrt(2/(9*df)), 3); chi > limit {
			t.Errorf("weights %v: χ² is %.1f, over %.1f: %v", weights, chi, limit, got)
		}
	}
}

func TestSourceHashIsConsistent(t *testing.T) {
	d := newTestEnv(t, 4)
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
			a, err := d.lab.Node.AskFrom("tcp", c, netip.MustParseAddrPort(to), timeout)
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
		t.Error("the same client does not always get the same endpoint")
	}
	for server, due := range map[string]int{"p1": 50, "p2": 50, "p3": 100} {
		if n := count(before, server); n < due-28 || n > due+28 { // four standard deviations
			t.Errorf("%s has %d of 200 clients, due %d", server, n, due)
		}
	}
	// p2 leaves: its clients move, and of the others only those whose slots went to other endpoints.
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
		t.Errorf("%d of %d clients of other endpoints moved", moved, 200-count(before, "p2"))
	}
	t.Logf("%d clients of other endpoints moved", moved)
	if out, err := d.nft("", "list", "ruleset"); err != nil || !strings.Contains(out, "jhash ip saddr mod 1024 seed 0x1 map @slots") {
		t.Errorf("nft list ruleset: %v\n%s", err, out)
	}
}
