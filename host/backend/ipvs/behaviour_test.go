package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

const askTimeout = 3 * time.Second

const globalSection = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  masquerade-mark      0x4000

`

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(globalSection + text)
	if err == nil {
		err = plan.Validate(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// web is one Service with members of these weights, 10.244.0.1 the first; a weight below 0 leaves one out.
func web(t testing.TB, weights ...int) *plan.Plan {
	return frontend(t, "10.96.0.80:80/TCP  ClusterIP", "", weights)
}

func frontend(t testing.TB, what, more string, weights []int) *plan.Plan {
	t.Helper()
	sum, n := 0, 0
	var members strings.Builder
	for _, w := range weights {
		sum += max(w, 0)
	}
	for i, w := range weights {
		if w < 0 {
			continue
		}
		n++
		phase := "active"
		if w == 0 {
			phase = "draining"
		}
		fmt.Fprintf(&members, "      10.244.0.%d:9000  weight %d  %.1f %%  %s\n", i+1, w, 100*float64(w)/float64(max(sum, 1)), phase)
	}
	verdict := "forward"
	if sum == 0 {
		verdict = "reject"
	}
	return parse(t, fmt.Sprintf("service shop/web\n  port http  %s  masquerade=outside balance=random%s\n    %s %d %s, total %d\n%s",
		what, more, verdict, n, map[bool]string{true: "endpoint", false: "endpoints"}[n == 1], sum, members.String()))
}

func (d *env) apply(b *Backend, next *plan.Plan, delta *plan.Delta) backend.Report {
	d.Helper()
	r, err := b.Apply(context.Background(), next, delta)
	if err != nil {
		d.Fatal(err)
	}
	d.expectRead(b, next)
	return r
}

func (d *env) expectRead(b *Backend, want *plan.Plan) {
	d.Helper()
	want, _ = plan.Normalize(want, b.Caps())
	got, err := b.Read(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if !want.Equal(got) {
		d.Fatalf("read (- wanted, + read):\n%s", plan.FormatDiff(want, got))
	}
}

func (d *env) ask(h *testnet.Host, network, to string) testnet.Answer {
	d.Helper()
	a, err := h.Ask(network, netip.MustParseAddrPort(to), askTimeout)
	if err != nil {
		d.Fatalf("%s asks %s: %v", h.Name, to, err)
	}
	return a
}

// ipvsadmSave is what ipvsadm lists, without connections.
func (d *env) ipvsadmSave() string {
	d.Helper()
	out, err := d.run("", "ipvsadm", "-Sn")
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func (d *env) linkAddrs() string {
	d.Helper()
	out, err := d.run("", "ip", "-br", "addr", "show", "dev", DefaultLink)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func TestANodesProcessThatChoosesNoSourceIsNotSeenAsTheServiceItself(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, parse(t, `service shop/web
  port http  10.96.0.80:80/TCP          ClusterIP   masquerade=outside balance=random
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/TCP    ClusterIP   masquerade=never balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::2]:9000  weight 1  100.0 %  active
  port http  203.0.113.5:80/TCP         LoadBalancer  masquerade=from-node balance=random
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
    outside drop
`), nil)
	for _, to := range []string{"10.96.0.80:80", "[fd00:10:96::80]:80", "203.0.113.5:80"} {
		a := d.ask(d.Lab.Node, "tcp", to)
		if vip := netip.MustParseAddrPort(to).Addr(); a.Client.Addr() == vip || a.Server != "p2" {
			t.Errorf("%s: %s sees %s", to, a.Server, a.Client)
		}
	}
}

func TestAPodMeetsItselfThroughItsService(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	for range 5 {
		if a := d.ask(d.Pods[0], "tcp", "10.96.0.80:80"); a.Server != "p1" || a.Client.Addr() == d.Pods[0].Addrs[0] {
			t.Errorf("%s sees %s", a.Server, a.Client)
		}
	}
}

func (d *env) dial(to string) net.Conn {
	d.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := d.Client.Dial(ctx, "tcp", netip.MustParseAddrPort(to))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { c.Close() })
	if _, err := testnet.Greeting(c); err != nil {
		d.Fatal(err)
	}
	return c
}

func checkAlive(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("still there\n")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 12))
	return err
}

func TestAMemberWithConnectionsLingersUntilTheyEndOrTheBound(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	prev, next := web(t, 1), web(t, -1, 1)
	d.apply(b, prev, nil)
	conn := d.dial("10.96.0.80:80")
	r := d.apply(b, next, plan.Diff(prev, next))
	if r.RequeueAfter != drainInterval {
		t.Errorf("look again after %s, want %s", r.RequeueAfter, drainInterval)
	}
	if s := d.ipvsadmSave(); !strings.Contains(s, "10.244.0.1:9000 -m -w 0") {
		t.Errorf("the member is not kept at weight 0:\n%s", s)
	}
	for range 4 {
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server != "p2" {
			t.Errorf("a new connection went to %s", a.Server)
		}
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// A restart knows it for what it is.
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
	// It comes back.
	if r := d.apply(b, prev, plan.Diff(next, prev)); r.Messages > 6 {
		t.Errorf("a member comes back: %+v", r)
	}
	if s := d.ipvsadmSave(); !strings.Contains(s, "10.244.0.1:9000 -m -w 1") {
		t.Errorf("it has not got its weight back:\n%s", s)
	}
	if err := checkAlive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// And goes for good.
	d.apply(b, next, plan.Diff(prev, next))
	d.now = d.now.Add(DefaultDrainTimeout + drainInterval)
	if r := d.apply(b, next, &plan.Delta{}); r.Messages == 0 || r.RequeueAfter != 0 {
		t.Errorf("after the bound: %+v", r)
	}
	if s := d.ipvsadmSave(); strings.Contains(s, "10.244.0.1") {
		t.Errorf("it lingers on:\n%s", s)
	}
}

func TestTheLastConnectionTakesAFrontendsAddressWithIt(t *testing.T) {
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
	time.Sleep(50 * time.Millisecond)
	d.now = d.now.Add(r.RequeueAfter)
	if r = d.apply(b, none, &plan.Delta{}); r.RequeueAfter == 0 || !strings.Contains(d.linkAddrs(), "10.96.0.80/32") {
		t.Errorf("its last packets do not find it: %+v, %s", r, d.linkAddrs())
	}
	d.settle(b, none)
	if out := d.linkAddrs() + d.ipvsadmSave(); strings.Contains(out, "10.96.0.80") {
		t.Fatalf("left: %s", out)
	}
}

// settle applies as often as the backend asks for, at the times that it asks for.
func (d *env) settle(b *Backend, p *plan.Plan) {
	d.Helper()
	for range 40 {
		r := d.apply(b, p, &plan.Delta{})
		if r.RequeueAfter == 0 {
			return
		}
		if r.RequeueAfter == drainInterval && checkIPVS() == nil {
			time.Sleep(time.Second) // IPVS keeps what was reset for ten
		}
		d.now = d.now.Add(r.RequeueAfter)
	}
	d.Fatal("it never settles")
}

func TestAConnectionThatConntrackForgetsIsReset(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := web(t, 1, 1)
	d.apply(b, p, nil)
	conns := map[string]net.Conn{}
	for len(conns) < 2 {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		c, err := d.Client.Dial(ctx, "tcp", netip.MustParseAddrPort("10.96.0.80:80"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		a, err := testnet.Greeting(c)
		if err != nil {
			t.Fatal(err)
		}
		conns[a.Server] = c
	}
	err := d.Lab.Node.Do(func() error {
		n, err := conntrack.Table{}.Reset(context.Background(), []plan.Reset{{Frontend: p.Keys()[0], Endpoint: netip.MustParseAddrPort("10.244.0.1:9000")}})
		if err == nil && n != 1 {
			err = fmt.Errorf("%d connections", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := checkAlive(conns["p1"]); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection to p1: %v, want a reset", err)
	}
	if err := checkAlive(conns["p2"]); err != nil {
		t.Errorf("the connection to p2: %v", err)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
}

func TestAUDPFlowFindsAnotherMemberWhenItsOwnHasLeft(t *testing.T) {
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
	ask := func() string {
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := c.Write([]byte("who?")); err != nil {
			return err.Error()
		}
		a, err := testnet.Greeting(c)
		if err != nil {
			return err.Error()
		}
		return a.Server
	}
	if got := ask(); got != "p1" {
		t.Fatalf("answered by %s", got)
	}
	d.apply(b, next, plan.Diff(prev, next))
	var got []string
	for range 5 {
		if got = append(got, ask()); got[len(got)-1] == "p2" {
			return
		}
	}
	t.Errorf("answered by %v", got)
}

func TestSchedulersFollowTheBalance(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	for balance, want := range map[string]string{
		"random": "-s wrr -b flag-3", "round-robin": "-s wrr -b flag-3", "source-hash": "-s mh", "least-connections": "-s wlc -b flag-3",
	} {
		p := web(t, 1, 1)
		for k, f := range p.Frontends {
			g := *f
			for g.Balance = plan.Random; g.Balance.String() != balance; g.Balance++ {
			}
			p.Frontends[k] = &g
		}
		d.apply(b, p, nil)
		if s := d.ipvsadmSave(); !strings.Contains(s, "-A -t 10.96.0.80:80 "+want) {
			t.Errorf("%s, want %s:\n%s", balance, want, s)
		}
	}
	o := d.options()
	if o.Scheduler = "no-such"; true {
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "modprobe ip_vs_no-such") {
			t.Errorf("a scheduler that there is none of: %v", err)
		}
	}
}

func TestClientsAreHashedToTheSameMember(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	p := web(t, 1, 1, 1, 1)
	for k, f := range p.Frontends {
		g := *f
		g.Balance = plan.SourceHash
		p.Frontends[k] = &g
	}
	d.apply(b, p, nil)
	first := d.ask(d.Client, "tcp", "10.96.0.80:80").Server
	for range 8 {
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server != first {
			t.Errorf("went to %s, before to %s", a.Server, first)
		}
	}
}
