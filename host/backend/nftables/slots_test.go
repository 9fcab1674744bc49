package nftables

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestConnectionsAreBalancedByWeight(t *testing.T) {
	d := newTestEnv(t, 4)
	n := 2500
	if testing.Short() { // in a virtual machine a connection takes 4 ms
		n = 200
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
		chi, df := 0.0, -1.0
		for j, w := range weights {
			due, has := float64(n)*float64(w)/float64(sum), got[fmt.Sprintf("p%d", j+1)]
			if due < 5 { // too few for χ²
				if has > due+5*math.Sqrt(due)+8 {
					t.Errorf("weights %v: p%d has %.0f of %d connections, expected %.1f", weights, j+1, has, n, due)
				}
				continue
			}
			chi, df = chi+math.Pow(has-due, 2)/due, df+1
		}
		// 4.75 standard deviations, by Wilson and Hilferty: a fair one fails once in a million runs.
		if limit := df * math.Pow(1-2/(9*df)+4.75*math.Sqrt(2/(9*df)), 3); chi > limit {
			t.Errorf("weights %v: χ² is %.1f, over %.1f: %v", weights, chi, limit, got)
		}
	}
}

// hashedLines are frontends with source hash in both families.
var hashedLines = [2]string{
	"10.96.0.10:80/TCP ClusterIP masquerade=never balance=source-hash",
	"[fd00:10:96::a]:80/TCP ClusterIP masquerade=never balance=source-hash",
}

// hashClients gives the node n addresses of clients, of both families.
func hashClients(d *testEnv, n int) (clients []netip.Addr) {
	for i := range n {
		a := netip.AddrFrom4([4]byte{192, 168, 100, byte(i + 1)})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 0, 1, 0x92, 15: byte(i + 1)})
		}
		if err := d.lab.Node.AddAddr("lo", a); err != nil {
			d.Fatal(err)
		}
		clients = append(clients, a)
	}
	return clients
}

func hashFrontend(client netip.Addr) netip.AddrPort {
	if client.Is6() {
		return netip.MustParseAddrPort("[fd00:10:96::a]:80")
	}
	return netip.MustParseAddrPort("10.96.0.10:80")
}

// applyHashed applies the frontends of hashedLines with these endpoints.
func applyHashed(d *testEnv, list string) {
	d.apply(service(frontend(hashedLines[0], list), frontend(hashedLines[1], list)))
}

// serversOf returns the endpoint of each client.
func serversOf(d *testEnv, clients []netip.Addr) (seen []string) {
	for _, c := range clients {
		a, err := d.lab.Node.AskFrom("tcp", c, hashFrontend(c), timeout)
		if err != nil {
			d.Fatal(err)
		}
		seen = append(seen, a.Server)
	}
	return seen
}

// checkClientOf checks that clientOf has the endpoint that the kernel has chosen for each client.
func checkClientOf(t *testing.T, list string, clients []netip.Addr, servers []string) {
	t.Helper()
	p, err := plan.Parse(service(frontend(hashedLines[0], list), frontend(hashedLines[1], list)))
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range clients {
		at := hashFrontend(c)
		pool := &p.Frontends[plan.Key{Addr: at.Addr(), Port: at.Port(), Protocol: model.TCP}].Pool
		bytes := clientOf(pool, c).Addr().AsSlice()
		if got := fmt.Sprint("p", bytes[len(bytes)-1]); got != servers[i] {
			t.Errorf("%s gets %s, not %s", c, servers[i], got)
		}
	}
}

func TestSourceHashIsConsistent(t *testing.T) {
	d := newTestEnv(t, 4)
	n := 200
	if testing.Short() {
		n = 80
	}
	clients := hashClients(d, n)
	count := func(seen []string, server string) (n int) {
		for _, s := range seen {
			if s == server {
				n++
			}
		}
		return n
	}
	applyHashed(d, "1 2 3*2")
	before := serversOf(d, clients)
	checkClientOf(t, "1 2 3*2", clients, before)
	if again := serversOf(d, clients); !slices.Equal(before, again) {
		t.Error("the same client does not always get the same endpoint")
	}
	for server, share := range map[string]float64{"p1": 0.25, "p2": 0.25, "p3": 0.5} {
		got, due := float64(count(before, server)), share*float64(n)
		if math.Abs(got-due) > 4*math.Sqrt(due*(1-share)) { // four standard deviations
			t.Errorf("%s has %v of %d clients, due %v", server, got, n, due)
		}
	}
	var established []net.Conn
	for _, c := range clients[:40] {
		conn, err := d.lab.Node.DialFrom(context.Background(), "tcp", c, hashFrontend(c))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := testnet.Greeting(conn); err != nil {
			t.Fatal(err)
		}
		established = append(established, conn)
	}
	// p2 leaves: its clients move, and of the others only those whose slots went to other endpoints.
	applyHashed(d, "1 3*2")
	after := serversOf(d, clients)
	checkClientOf(t, "1 3*2", clients, after)
	moved := 0
	for i := range before {
		if after[i] == "p2" {
			t.Fatalf("%s still goes to p2", clients[i])
		}
		if before[i] != "p2" && after[i] != before[i] {
			moved++
		}
	}
	if moved > n/20 {
		t.Errorf("%d of %d clients of other endpoints moved", moved, n-count(before, "p2"))
	}
	t.Logf("%d clients of other endpoints moved", moved)
	for i, c := range established {
		_ = c.SetDeadline(time.Now().Add(timeout))
		if _, err := c.Write([]byte("still")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Errorf("an established connection from %s to %s: %v", clients[i], before[i], err)
		}
	}
	if out, err := d.nft("", "list", "ruleset"); err != nil || !strings.Contains(out, "jhash ip saddr mod 1024 seed 0x1 map @slots") {
		t.Errorf("nft list ruleset: %v\n%s", err, out)
	}
}

// Two nodes that have had other endpoints before send a client to the same endpoint.
func TestClientsMeetTheSameEndpointFromEveryNode(t *testing.T) {
	a, b := newTestEnv(t, 4), newTestEnv(t, 4)
	clients := hashClients(a, 100)
	hashClients(b, 100)
	for _, list := range []string{"1 2", "2 3*3 4", "4", "1 2 3"} {
		applyHashed(a, list)
	}
	applyHashed(b, "3 4*2")
	b.restart()
	for _, list := range []string{"1 2 3", "1 2 3*2 4"} {
		applyHashed(a, list)
		applyHashed(b, list)
		if on, other := serversOf(a, clients), serversOf(b, clients); !slices.Equal(on, other) {
			t.Errorf("endpoints %s: the nodes send clients to %v and %v", list, on, other)
		}
	}
}
