package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

func TestAffinity(t *testing.T) {
	d := newTestEnv(t, 4)
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
	// stays connects again. If this process was paused for longer than the timeout, any endpoint may answer.
	requestedAt := time.Now()
	stays := func(what, to string, before *string) {
		t.Helper()
		last := requestedAt
		requestedAt = time.Now()
		if got := d.ask(d.client, "tcp", to).Server; got != *before {
			if time.Since(last) < time.Second {
				t.Fatalf("%s: went to %s, before to %s", what, got, *before)
			}
			*before = got
		}
	}
	// Clients return to their endpoint through all frontends of the Service port, and each connection extends the
	// timeout: two seconds in all, with a timeout of one.
	first := d.ask(d.client, "tcp", cluster).Server
	for range 8 {
		time.Sleep(250 * time.Millisecond) // pace of a client
		for _, to := range []string{cluster, node, "203.0.113.2:80"} {
			stays(to, to, &first)
		}
	}
	requestedAt = time.Now()
	six := d.ask(d.client, "tcp", "[fd00:10:96::a]:80").Server
	for range 8 {
		stays("IPv6", "[fd00:192::1]:30080", &six)
	}
	// With new weights and endpoints, the client stays.
	requestedAt = time.Now()
	first = d.ask(d.client, "tcp", cluster).Server
	d.apply(lines("1*5 2*7 3*11 4*13", "1 2 3 4"))
	stays("after new weights", cluster, &first)
	// The client expires.
	seen := map[string]bool{}
	for range 12 {
		time.Sleep(1200 * time.Millisecond) // time passes: the timeout
		if seen[d.ask(d.client, "tcp", cluster).Server] = true; len(seen) > 1 {
			break
		}
	}
	if len(seen) == 1 {
		t.Errorf("never expires: always %v", seen)
	}
	// The endpoint leaves one path only: there the client gets another one, elsewhere it stays.
	first = d.ask(d.client, "tcp", cluster).Server
	others := strings.TrimSpace(strings.Replace("1 2 3 4", strings.TrimPrefix(first, "p"), "", 1))
	d.apply(lines("1 2 3 4", others))
	if got := d.ask(d.client, "tcp", "203.0.113.2:80").Server; got == first {
		t.Errorf("outside: still goes to %s, which is not in that pool", got)
	}
	// The endpoint leaves: the client moves, and stays there when the endpoint is back.
	second := d.ask(d.client, "tcp", cluster).Server
	others = strings.TrimSpace(strings.Replace("1 2 3 4", strings.TrimPrefix(second, "p"), "", 1))
	d.apply(lines(others, others))
	third := d.ask(d.client, "tcp", cluster).Server
	if third == second {
		t.Errorf("still goes to %s, which has left", second)
	}
	requestedAt = time.Now()
	third = d.ask(d.client, "tcp", cluster).Server
	d.apply(lines("1 2 3 4", "1 2 3 4"))
	for range 5 {
		stays("it came back", cluster, &third)
	}
}

// TestClientsAreRecordedForTheTimeout: up to 5 minutes the kernel forgets a client after exactly the timeout of its Service.
func TestClientsAreRecordedForTheTimeout(t *testing.T) {
	for _, timeout := range []time.Duration{125 * time.Second, 299 * time.Second, 5 * time.Minute, 3 * time.Hour} {
		d := newTestEnv(t, 1)
		d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never affinity="+timeout.String(), "1")))
		d.ask(d.client, "tcp", "10.96.0.10:80")
		clients, _ := d.clients()
		if len(clients) != 1 {
			t.Errorf("affinity of %s: %d clients", timeout, len(clients))
		}
		for name, c := range clients {
			if c.Timeout != timeout || c.Expires > timeout {
				t.Errorf("affinity of %s: client %s is recorded for %s, and expires in %s", timeout, name, c.Timeout, c.Expires)
			}
		}
	}
}

// TestClientsOfEndpointsThatLeft records a client for an endpoint that has left, as a packet does that was on its way.
func TestClientsOfEndpointsThatLeft(t *testing.T) {
	d := newTestEnv(t, 3)
	const key = "10.96.0.10:80/TCP ClusterIP masquerade=never affinity=3h"
	all := parse(t, service(frontend(key, "1 2 3")))
	one := parse(t, service(frontend(key, "2 3")))
	d.mustApply(all, nil)
	mayMove := func() string {
		t.Helper()
		first := d.ask(d.client, "tcp", "10.96.0.10:80").Server
		if first == "p1" {
			t.Fatal("went to p1, which has left")
		}
		for range 5 {
			if got := d.ask(d.client, "tcp", "10.96.0.10:80").Server; got != first {
				t.Fatalf("went to %s, then to %s", first, got)
			}
		}
		return first
	}
	for _, room := range []string{"1", "shared"} {
		d.mustApply(all, plan.Diff(one, all))
		d.mustNFT("flush map ip sluice affinity_0_1; flush map ip sluice affinity_0_shared")
		elements, _ := d.clients()
		if len(elements) > 0 {
			t.Fatalf("%d clients", len(elements))
		}
		id := ""
		for _, e := range d.listedEndpoints() {
			if e.addr.Addr().String() == "10.244.0.1" {
				id = fmt.Sprintf("1:%x", e.id)
			}
		}
		dumps := &dumpCounter{Transport: d.b.conn.Transport}
		d.b.conn.Transport = dumps
		if r, err := d.b.Apply(context.Background(), one, plan.Diff(all, one)); err != nil || r.RequeueAfter != 0 || dumps.n != 0 {
			t.Fatalf("%+v with %d dumps, %v", r, dumps.n, err)
		}
		d.b.conn.Transport = dumps.Transport
		d.mustNFT("add element ip sluice affinity_0_" + room + " { 198.51.100.9 . 1:0 timeout 1h : " + id + " }")
		second := mayMove()
		// It comes back: the client stays where it is.
		d.mustApply(all, plan.Diff(one, all))
		if got := d.ask(d.client, "tcp", "10.96.0.10:80").Server; got != second {
			t.Errorf("when p1 came back, the client moved from %s to %s", second, got)
		}
		d.mustApply(one, plan.Diff(all, one))
	}
}

// dumpCounter counts the requests that list something.
type dumpCounter struct {
	nfnl.Transport
	n int
}

func (c *dumpCounter) Send(b []byte) error {
	if binary.NativeEndian.Uint16(b[6:])&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
		c.n++
	}
	return c.Transport.Send(b)
}

// listedEndpoints returns the endpoints of the only group.
func (d *testEnv) listedEndpoints() []listedEndpoint {
	d.Helper()
	b := d.open()
	defer b.Close()
	if mismatch, err := b.tables[0].load(); mismatch != nil || err != nil {
		d.Fatal(mismatch, err)
	}
	return b.tables[0].groups.byID[groupID(1)].lists[0].programmed
}
