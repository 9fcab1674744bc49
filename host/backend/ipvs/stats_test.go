package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestStatsAreByFrontendAndOnlyOfOwnedVirtualServers(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
	p := web(t, 3, 1)
	for k, f := range frontend(t, "*4:30080/TCP  NodePort", "", []int{1}).Frontends {
		p.Frontends[k] = f
	}
	for k, f := range frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1, 1}).Frontends {
		g := *f
		g.Outside = &plan.Pool{Endpoints: []plan.Endpoint{f.Pool.Endpoints[1]}}
		p.Frontends[k] = &g
	}
	d.apply(b, p, nil)
	main := addrKey(netip.MustParseAddr("10.96.0.80"), 80, model.TCP)
	first := netip.MustParseAddrPort("10.244.0.1:9000")
	d.virtualServers[main].counters = backend.ServerCounters{Connections: 4, PacketsIn: 20, PacketsOut: 16, BytesIn: 2000, BytesOut: 1600}
	busy := d.virtualServers[main].destinations[first]
	busy.active, busy.inactive = 2, 7
	d.virtualServers[main].destinations[first] = busy
	// One of another program, and one of sluice that no frontend uses any more.
	left := destinationState{destination: destination{addr: first, draining: true}, active: 1}
	d.virtualServers[addrKey(netip.MustParseAddr("192.0.2.80"), 80, model.TCP)] = &fakeServer{serverConfig: serverConfig{"rr", 0}}
	d.virtualServers[addrKey(netip.MustParseAddr("192.0.2.81"), 80, model.TCP)] = &fakeServer{serverConfig: serverConfig{"wrr", flagOwned},
		destinations: map[netip.AddrPort]destinationState{first: left}}
	got, err := b.readStats(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	if few, err := b.readStats(context.Background(), 1); err != nil || len(few) != len(got) || len(few[0].Destinations) == 0 || len(few[1].Destinations) > 0 {
		t.Errorf("with the destinations of one: %+v, %v", few, err)
	}
	type line struct {
		frontend, owner string
		pool            backend.ServerPool
		destinations    int
	}
	var lines []line
	for _, c := range got {
		l := line{pool: c.Pool, destinations: len(c.Destinations)}
		if c.Pool != "" {
			l.frontend, l.owner = c.Frontend.String(), c.Owner.String()
		}
		lines = append(lines, l)
		if c.Scheduler != "wrr" {
			t.Errorf("%s: scheduler %q", c.Server, c.Scheduler)
		}
	}
	want := []line{
		{"10.96.0.80:80/TCP", "shop/web:http", backend.PoolAll, 2},
		{"203.0.113.5:80/TCP", "shop/web:http", backend.PoolOutside, 1},
		{"203.0.113.5:80/TCP", "shop/web:http", backend.PoolInside, 2},
		{"*4:30080/TCP", "shop/web:http", backend.PoolAll, 1},
		{"", "", "", 1},
	}
	for _, w := range want {
		if !slices.Contains(lines, w) {
			t.Errorf("no %+v in %+v", w, lines)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%+v", lines)
	}
	at := slices.IndexFunc(got, func(c backend.ServerStats) bool { return c.Server == main.String() })
	if c := got[at]; c.ServerCounters != d.virtualServers[main].counters || c.Destinations[0] != (backend.DestinationStats{Addr: first, Weight: 3, Active: 2, Inactive: 7}) || c.Destinations[1].Weight != 1 {
		t.Errorf("%+v", c)
	}
	at = slices.IndexFunc(got, func(c backend.ServerStats) bool { return c.Pool == "" })
	if c := got[at]; c.Server != "192.0.2.81:80/TCP" || !c.Destinations[0].Draining || c.Destinations[0].Active != 1 {
		t.Errorf("%+v", c)
	}
}

func TestStatsAreReadFromTheKernel(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, web(t, 3, 1), nil)
	c, err := d.Client.Dial(context.Background(), "tcp", netip.MustParseAddrPort("10.96.0.80:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := b.readStats(context.Background(), 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Pool != backend.PoolAll || got[0].Scheduler != "wrr" || len(got[0].Destinations) != 2 {
		t.Fatalf("%+v", got)
	}
	if m := got[0].Destinations; m[0].Weight != 3 || m[1].Weight != 1 || m[0].Active+m[1].Active != 1 {
		t.Errorf("%+v", m)
	}
}
