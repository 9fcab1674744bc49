package ipvs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestARemovedDestinationDrainsUntilTheDrainTimeout(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev, next := web(t, 1), web(t, -1, 1)
	d.apply(b, prev, nil)
	conn := d.dial("10.96.0.80:80")
	r := d.apply(b, next, plan.Diff(prev, next))
	if r.RequeueAfter != drainInterval {
		t.Errorf("RequeueAfter is %s, want %s", r.RequeueAfter, drainInterval)
	}
	if s := d.ipvsadmSave(); !strings.Contains(s, "10.244.0.1:9000 -m -w 0") {
		t.Errorf("the destination is not kept at weight 0:\n%s", s)
	}
	for range 4 {
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server != "p2" {
			t.Errorf("a new connection went to %s", a.Server)
		}
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// After a restart, it is still recognized as draining.
	b.Close()
	b = d.open()
	d.expectRead(b, next)
	if r := d.apply(b, next, nil); r.Messages != 0 || r.RequeueAfter == 0 {
		t.Errorf("after a restart: %+v", r)
	}
	d.now = d.now.Add(r.RequeueAfter)
	if r := d.apply(b, next, &plan.Delta{}); r.Messages != 0 || r.RequeueAfter != drainInterval {
		t.Errorf("a minute later: %+v", r)
	}
	// It returns to the plan.
	if r := d.apply(b, prev, plan.Diff(next, prev)); r.Messages > 6 {
		t.Errorf("a destination returns: %+v", r)
	}
	if s := d.ipvsadmSave(); !strings.Contains(s, "10.244.0.1:9000 -m -w 1") {
		t.Errorf("its weight is not restored:\n%s", s)
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// It is removed for good.
	d.apply(b, next, plan.Diff(prev, next))
	d.now = d.now.Add(DefaultDrainTimeout + drainInterval)
	if r := d.apply(b, next, &plan.Delta{}); r.Messages == 0 || r.RequeueAfter != 0 {
		t.Errorf("after the drain timeout: %+v", r)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "10.244.0.1") {
		t.Errorf("it is still draining:\n%s", s)
	}
}

func TestTheVIPOfARemovedFrontendStaysUntilItsLastConnectionEnds(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev := web(t, 1)
	d.apply(b, prev, nil)
	conn := d.dial("10.96.0.80:80")
	none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	r := d.apply(b, none, plan.Diff(prev, none))
	if err := checkAlive(conn); err != nil || r.RequeueAfter == 0 || !strings.Contains(d.linkAddrs(), "10.96.0.80/32") {
		t.Fatalf("the connection: %v, %+v, %s", err, r, d.linkAddrs())
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
	time.Sleep(50 * time.Millisecond) // time passes: the RST is on its way
	d.now = d.now.Add(r.RequeueAfter)
	if r = d.apply(b, none, &plan.Delta{}); r.RequeueAfter == 0 || !strings.Contains(d.linkAddrs(), "10.96.0.80/32") {
		t.Errorf("the address is gone before its last packets: %+v, %s", r, d.linkAddrs())
	}
	d.settle(b, none)
	if out := d.linkAddrs() + d.ipvsadmSave(); strings.Contains(out, "10.96.0.80") {
		t.Fatalf("left: %s", out)
	}
}

func TestAUDPFlowIsRescheduledWhenItsDestinationIsRemoved(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	service := func(w ...int) *plan.Plan { return frontend(t, "10.96.0.80:53/UDP  ClusterIP", "", w) }
	prev, next := service(1), service(-1, 1)
	d.apply(b, prev, nil)
	c, err := d.Client.Dial(context.Background(), "udp", netip.MustParseAddrPort("10.96.0.80:53"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(wait time.Duration) string {
		_ = c.SetDeadline(time.Now().Add(wait))
		if _, err := c.Write([]byte("who?")); err != nil {
			return err.Error()
		}
		a, err := testnet.Greeting(c)
		if err != nil {
			return err.Error()
		}
		return a.Server
	}
	if got := ask(askTimeout); got != "p1" {
		t.Fatalf("answered by %s", got)
	}
	d.apply(b, next, plan.Diff(prev, next))
	var got []string
	for end := time.Now().Add(askTimeout); time.Now().Before(end); {
		if got = append(got, ask(300*time.Millisecond)); got[len(got)-1] == "p2" {
			return
		}
	}
	t.Errorf("answered by %v, want p2 in the end", got)
}

// TestInactiveConnectionsKeepADestination: half-closed connections, on which one side may still send, are inactive in
// IPVS.
func TestInactiveConnectionsKeepADestination(t *testing.T) {
	d := newMemEnv(t)
	b := d.open()
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
		t.Errorf("drainServer: busy %v, %v", busy, err)
	}
	if m := server.destinations[pod]; m.weight == 0 {
		t.Error("a destination with a connection being established has lost its weight: a retransmitted SYN would end the connection")
	}
	d.apply(b, prev, nil)
	count(0)
	d.apply(b, none, plan.Diff(prev, none))
	server = d.virtualServers[addrKey(vip, 80, model.TCP)]
	if server != nil {
		t.Fatalf("kept without connections: %+v", server)
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
