package rules

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/plan"
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
		time.Sleep(250 * time.Millisecond)
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
		time.Sleep(1200 * time.Millisecond)
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

func TestStaleClientsAreDeletedTwice(t *testing.T) {
	d := newTestEnv(t, 2)
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
	// A client that was on its way to the old endpoint is recorded only now.
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
