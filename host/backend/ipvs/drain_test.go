package ipvs

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// TestAConnectionThatOneSideHasClosedIsWaitedFor is about those that IPVS counts as inactive while the other side sends.
func TestAConnectionThatOneSideHasClosedIsWaitedFor(t *testing.T) {
	d := newMemEnv(t)
	b, err := d.open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	prev := web(t, 1)
	none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	d.apply(b, prev, nil)
	vip, pod := netip.MustParseAddr("10.96.0.80"), netip.MustParseAddrPort("10.244.0.1:9000")
	server := d.virtualServers[addrKey(vip, 80, model.TCP)]
	count := func(inactive int) {
		m := server.destinations[pod]
		m.inactive = inactive
		server.destinations[pod] = m
	}
	count(1)
	if busy, err := drainServer(d.fakeKernel, addrKey(vip, 80, model.TCP)); !busy || err != nil {
		t.Errorf("retired: busy %v, %v", busy, err)
	}
	if m := server.destinations[pod]; m.weight == 0 {
		t.Error("a member with a connection that is just being made has lost its weight: a SYN that is sent again would end it")
	}
	d.apply(b, prev, nil)
	count(0)
	d.apply(b, none, plan.Diff(prev, none))
	server = d.virtualServers[addrKey(vip, 80, model.TCP)]
	if server != nil {
		t.Fatalf("without connections it is kept: %+v", server)
	}
	d.settle(b, none)
	d.apply(b, prev, nil)
	server = d.virtualServers[addrKey(vip, 80, model.TCP)]
	count(1)
	r := d.apply(b, none, plan.Diff(prev, none))
	for range 10 {
		d.now = d.now.Add(r.RequeueAfter)
		if r = d.apply(b, none, &plan.Delta{}); r.RequeueAfter != drainInterval || !d.bound[vip] || len(server.destinations) != 1 {
			t.Fatalf("%+v, %v", r, server)
		}
	}
	count(0)
	d.settle(b, none)
	if len(d.virtualServers) > 0 || len(d.bound) > 0 {
		t.Errorf("left: %v, %v", d.virtualServers, d.bound)
	}
}
