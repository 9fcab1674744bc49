package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/kubeproxy"
	"github.com/sluice-proxy/sluice/host/netlab"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

const soon = 3 * time.Second

const globals = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  masquerade-mark      0x4000

`

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(globals + text)
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
		what, more, verdict, n, map[bool]string{true: "member", false: "members"}[n == 1], sum, members.String()))
}

func (d *bed) apply(b *Backend, next *plan.Plan, delta *plan.Delta) engine.Report {
	d.Helper()
	r, err := b.Apply(context.Background(), next, delta)
	if err != nil {
		d.Fatal(err)
	}
	d.reads(b, next)
	return r
}

func (d *bed) reads(b *Backend, want *plan.Plan) {
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

func (d *bed) ask(h *netlab.Host, network, to string) netlab.Answer {
	d.Helper()
	a, err := h.Ask(network, netip.MustParseAddrPort(to), soon)
	if err != nil {
		d.Fatalf("%s asks %s: %v", h.Name, to, err)
	}
	return a
}

// servers is what ipvsadm lists, without connections.
func (d *bed) servers() string {
	d.Helper()
	out, err := d.run("", "ipvsadm", "-Sn")
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func (d *bed) vips() string {
	d.Helper()
	out, err := d.run("", "ip", "-br", "addr", "show", "dev", DefaultLink)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

func TestANodesProcessThatChoosesNoSourceIsNotSeenAsTheServiceItself(t *testing.T) {
	d := newBed(t)
	b := d.open()
	d.apply(b, parse(t, `service shop/web
  port http  10.96.0.80:80/TCP          ClusterIP   masquerade=outside balance=random
    forward 1 member, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/TCP    ClusterIP   masquerade=never balance=random
    forward 1 member, total 1
      [fd00:10:244::2]:9000  weight 1  100.0 %  active
  port http  203.0.113.5:80/TCP         LoadBalancer  masquerade=from-node balance=random
    forward 1 member, total 1
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
	d := newBed(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	for range 5 {
		if a := d.ask(d.Pods[0], "tcp", "10.96.0.80:80"); a.Server != "p1" || a.Client.Addr() == d.Pods[0].Addrs[0] {
			t.Errorf("%s sees %s", a.Server, a.Client)
		}
	}
}

func (d *bed) hold(to string) net.Conn {
	d.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	c, err := d.Client.Dial(ctx, "tcp", netip.MustParseAddrPort(to))
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { c.Close() })
	if _, err := netlab.Greeting(c); err != nil {
		d.Fatal(err)
	}
	return c
}

func alive(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("still there\n")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 12))
	return err
}

func TestAMemberWithConnectionsLingersUntilTheyEndOrTheBound(t *testing.T) {
	d := newBed(t)
	b := d.open()
	prev, next := web(t, 1), web(t, -1, 1)
	d.apply(b, prev, nil)
	conn := d.hold("10.96.0.80:80")
	r := d.apply(b, next, plan.Diff(prev, next))
	if r.Again != lingerCheck {
		t.Errorf("look again after %s, want %s", r.Again, lingerCheck)
	}
	if s := d.servers(); !strings.Contains(s, "10.244.0.1:9000 -m -w 0") {
		t.Errorf("the member is not kept at weight 0:\n%s", s)
	}
	for range 4 {
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server != "p2" {
			t.Errorf("a new connection went to %s", a.Server)
		}
	}
	if err := alive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// A restart knows it for what it is.
	b.Close()
	b = d.open()
	d.reads(b, next)
	if r := d.apply(b, next, nil); r.Messages != 0 || r.Again == 0 {
		t.Errorf("after a restart: %+v", r)
	}
	d.t = d.t.Add(r.Again)
	if r := d.apply(b, next, &plan.Delta{}); r.Messages != 0 || r.Again != lingerCheck {
		t.Errorf("a minute later: %+v", r)
	}
	// It comes back.
	if r := d.apply(b, prev, plan.Diff(next, prev)); r.Messages > 6 {
		t.Errorf("a member comes back: %+v", r)
	}
	if s := d.servers(); !strings.Contains(s, "10.244.0.1:9000 -m -w 1") {
		t.Errorf("it has not got its weight back:\n%s", s)
	}
	if err := alive(conn); err != nil {
		t.Errorf("the connection: %v", err)
	}
	// And goes for good.
	d.apply(b, next, plan.Diff(prev, next))
	d.t = d.t.Add(DefaultLinger + lingerCheck)
	if r := d.apply(b, next, &plan.Delta{}); r.Messages == 0 || r.Again != 0 {
		t.Errorf("after the bound: %+v", r)
	}
	if s := d.servers(); strings.Contains(s, "10.244.0.1") {
		t.Errorf("it lingers on:\n%s", s)
	}
}

func TestTheLastConnectionTakesAFrontendsAddressWithIt(t *testing.T) {
	d := newBed(t)
	b := d.open()
	prev := web(t, 1)
	d.apply(b, prev, nil)
	conn := d.hold("10.96.0.80:80")
	none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	r := d.apply(b, none, plan.Diff(prev, none))
	if err := alive(conn); err != nil || r.Again == 0 || !strings.Contains(d.vips(), "10.96.0.80/32") {
		t.Fatalf("the connection: %v, %+v, %s", err, r, d.vips())
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
	time.Sleep(50 * time.Millisecond)
	d.t = d.t.Add(r.Again)
	if r = d.apply(b, none, &plan.Delta{}); r.Again == 0 || !strings.Contains(d.vips(), "10.96.0.80/32") {
		t.Errorf("its last packets do not find it: %+v, %s", r, d.vips())
	}
	d.settle(b, none)
	if out := d.vips() + d.servers(); strings.Contains(out, "10.96.0.80") {
		t.Fatalf("left: %s", out)
	}
}

// settle applies as often as the backend asks for, at the times that it asks for.
func (d *bed) settle(b *Backend, p *plan.Plan) {
	d.Helper()
	for range 40 {
		r := d.apply(b, p, &plan.Delta{})
		if r.Again == 0 {
			return
		}
		if r.Again == lingerCheck && present() == nil {
			time.Sleep(time.Second) // IPVS keeps what was reset for ten
		}
		d.t = d.t.Add(r.Again)
	}
	d.Fatal("it never settles")
}

func TestAConnectionThatConntrackForgetsIsReset(t *testing.T) {
	d := newBed(t)
	b := d.open()
	p := web(t, 1, 1)
	d.apply(b, p, nil)
	conns := map[string]net.Conn{}
	for len(conns) < 2 {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		c, err := d.Client.Dial(ctx, "tcp", netip.MustParseAddrPort("10.96.0.80:80"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		a, err := netlab.Greeting(c)
		if err != nil {
			t.Fatal(err)
		}
		conns[a.Server] = c
	}
	err := d.Lab.Node.Do(func() error {
		n, err := conntrack.Table{}.Reset(context.Background(), []plan.Reset{{Frontend: p.Keys()[0], Member: netip.MustParseAddrPort("10.244.0.1:9000")}})
		if err == nil && n != 1 {
			err = fmt.Errorf("%d connections", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := alive(conns["p1"]); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection to p1: %v, want a reset", err)
	}
	if err := alive(conns["p2"]); err != nil {
		t.Errorf("the connection to p2: %v", err)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
}

func TestAUDPFlowFindsAnotherMemberWhenItsOwnHasLeft(t *testing.T) {
	d := newBed(t)
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
		a, err := netlab.Greeting(c)
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
	d := newBed(t)
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
		if s := d.servers(); !strings.Contains(s, "-A -t 10.96.0.80:80 "+want) {
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
	d := newBed(t)
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

func TestWhatOthersDoIsNoticedAndRepaired(t *testing.T) {
	d := newBed(t)
	b := d.open()
	p := web(t, 1, 3)
	d.apply(b, p, nil)
	heard := make(chan engine.Foreign, 10)
	stop, err := b.Watch(func(f engine.Foreign) { heard <- f })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	moved := func() bool {
		t.Helper()
		m, err := b.Moved(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 3 {
		if moved() {
			t.Error("moved without a reason")
		}
	}
	for _, damage := range []string{
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 9",
		"ipvsadm -d -t 10.96.0.80:80 -r 10.244.0.1:9000",
		"ipvsadm -e -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1 -x 1",
		"ipvsadm -E -t 10.96.0.80:80 -s rr -b flag-3",
		"ipvsadm -D -t 10.96.0.80:80",
		"ip addr del 10.96.0.80/32 dev " + DefaultLink,
		"ip link del " + DefaultLink,
	} {
		words := strings.Fields(damage)
		if _, err := d.run("", words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
		if !moved() {
			t.Errorf("%s is not noticed", damage)
		}
		if got, err := b.Read(context.Background()); err != nil || got.Equal(p) {
			t.Errorf("after %s it reads as before, %v", damage, err)
		}
		d.apply(b, p, nil)
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server == "" {
			t.Error("not repaired")
		}
		moved() // goes on from the start
	}
	if _, err := d.run("flush chain ip sluice services\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
	case <-time.After(soon):
		t.Error("a flushed chain is not heard of")
	}
}

func (d *bed) must(words ...string) string {
	d.Helper()
	out, err := d.run("", words[0], words[1:]...)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

// moves looks, as the engine does, and applies when something has moved.
func (d *bed) moves(b *Backend, p *plan.Plan) bool {
	d.Helper()
	moved, err := b.Moved(context.Background())
	if err != nil {
		d.Fatal(err)
	}
	if moved {
		d.apply(b, p, nil)
		d.settle(b, p)
	}
	return moved
}

func TestASettingThatSomebodyChangesIsPutRight(t *testing.T) {
	d := newBed(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	const path = "/proc/sys/net/ipv4/vs/conntrack"
	d.must("sh", "-c", "echo 0 > "+path)
	if _, err := b.Moved(context.Background()); err != nil {
		t.Fatal(err)
	}
	if now := strings.TrimSpace(d.must("cat", path)); now != "1" {
		t.Errorf("it is %s", now)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
}

// TestAnAddressThatTheNodeLosesOrGetsIsMovedToTheLinkOrAway is what keepalived does with a virtual address.
func TestAnAddressThatTheNodeLosesOrGetsIsMovedToTheLinkOrAway(t *testing.T) {
	d := newBed(t)
	d.must("ip", "link", "add", "up7", "type", "dummy")
	d.must("ip", "link", "set", "up7", "up")
	d.must("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	b := d.open()
	p := frontend(t, "203.0.113.5:80/TCP  ExternalIP", "", []int{1})
	d.apply(b, p, nil)
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	check := func(when string, own bool) {
		t.Helper()
		d.ask(d.Client, "tcp", "203.0.113.5:80")
		_, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), soon)
		if own && err != nil || !own && !netlab.Refused(err) {
			t.Errorf("%s: the node's own server: %v", when, err)
		}
		if on := strings.Contains(d.must("ip", "-br", "addr"), DefaultLink+" "); on && strings.Contains(d.vips(), "203.0.113.5/32") == own {
			t.Errorf("%s: %s", when, d.vips())
		}
		if d.moves(b, p) {
			t.Errorf("%s: it moves without a reason", when)
		}
	}
	check("the node's own", true)
	d.must("ip", "addr", "del", "203.0.113.5/32", "dev", "up7")
	if !d.moves(b, p) {
		t.Error("not noticed that it is gone")
	}
	check("lost", false)
	d.must("ip", "addr", "add", "203.0.113.5/32", "dev", "up7")
	if !d.moves(b, p) {
		t.Error("not noticed that it is back")
	}
	check("back", true)
}

func TestAVirtualServerOfOthersIsTakenOverUnlessExcluded(t *testing.T) {
	d := newBed(t)
	if _, err := d.run("-A -t 10.96.0.80:80 -s rr\n-a -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1\n-a -t 10.96.0.80:80 -r 10.244.0.3:9000 -g -w 1 -x 5\n", "ipvsadm", "-R"); err != nil {
		t.Fatal(err)
	}
	o := d.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Apply(context.Background(), web(t, 1, 1), nil)
	if err == nil || !strings.Contains(err.Error(), "shop/web:http 10.96.0.80:80/TCP") || !strings.Contains(err.Error(), "excludeCIDRs") {
		t.Errorf("an excluded one: %v", err)
	}
	if s := d.servers(); strings.Contains(s, "flag-3") || !strings.Contains(s, "10.244.0.3:80 -g") {
		t.Errorf("touched all the same:\n%s", s)
	}
	b.Close()
	b = d.open()
	d.apply(b, web(t, 1, 1), nil)
	if s := d.servers(); strings.Contains(s, "10.244.0.3") || !strings.Contains(s, "wrr -b flag-3") {
		t.Errorf("not taken over:\n%s", s)
	}
}

func TestKubeProxysServersAreTakenOverAndOutliveItsCleaningUp(t *testing.T) {
	d := newBed(t)
	o := d.options()
	o.Log = slog.New(slog.DiscardHandler)
	if err := newBackend(o, nil).settings(true); err != nil { // kube-proxy sets the same
		t.Fatal(err)
	}
	for _, args := range []string{"link add kube-ipvs0 type dummy", "addr add 10.96.0.80/32 dev kube-ipvs0", "addr add 10.96.0.81/32 dev kube-ipvs0"} {
		if _, err := d.run("", "ip", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.run("-A -t 10.96.0.80:80 -s rr\n-a -t 10.96.0.80:80 -r 10.244.0.1:9000 -m -w 1\n-A -t 10.96.0.81:80 -s rr\n", "ipvsadm", "-R"); err != nil {
		t.Fatal(err)
	}
	// Its rules make conntrack see connections.
	if _, err := d.run("add table ip kube\nadd chain ip kube postrouting { type nat hook postrouting priority 100; }\nadd rule ip kube postrouting ct state established counter\n", "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	conn := d.hold("10.96.0.80:80")
	b := d.open()
	p := web(t, 1, 1)
	d.apply(b, p, nil)
	if err := alive(conn); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	var removed []kubeproxy.Leftover
	err := d.Lab.Node.Do(func() (err error) {
		removed, err = kubeproxy.Remove(context.Background())
		return err
	})
	if err != nil || len(removed) == 0 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if s := d.servers(); strings.Contains(s, "10.96.0.81") || !strings.Contains(s, "-A -t 10.96.0.80:80 -s wrr -b flag-3") {
		t.Errorf("left:\n%s", s)
	}
	if err := alive(conn); err != nil {
		t.Errorf("a connection from before, when kube-proxy's link is gone: %v", err)
	}
	d.ask(d.Client, "tcp", "10.96.0.80:80")
	if r := d.apply(b, p, nil); r.Messages != 0 {
		t.Errorf("something was missing: %+v", r)
	}
}

func TestAddressesMayBeOnALinkOfSomebodyElse(t *testing.T) {
	d := newBed(t)
	o := d.options()
	o.Link = "lo"
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	before, err := d.run("", "ip", "-br", "addr", "show", "dev", "lo")
	if err != nil {
		t.Fatal(err)
	}
	d.apply(b, web(t, 1), nil)
	d.ask(d.Client, "tcp", "10.96.0.80:80")
	if _, err := Cleanup(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	after, err := d.run("", "ip", "-br", "addr", "show", "dev", "lo")
	if err != nil || after != before {
		t.Errorf("was %s\nis %s, %v", before, after, err)
	}
	o.Link = "no-such"
	if c, err := Open(o); err == nil || !strings.Contains(err.Error(), "no link no-such (ipvs.interface)") {
		t.Errorf("a link that is not there: %v, %v", c, err)
	}
}

// TestAddressesOfTheNodeOnALinkForServicesAreItsOwn has them as network managers and clouds put them there.
func TestAddressesOfTheNodeOnALinkForServicesAreItsOwn(t *testing.T) {
	d := newBed(t)
	for _, args := range []string{"link add up7 type dummy", "link set up7 up", "addr add 192.168.77.1/32 dev up7 noprefixroute",
		"addr add fd00:77::1/128 dev up7 noprefixroute", "addr add fd00:77::2/128 dev up7 noprefixroute preferred_lft 0 valid_lft 3000",
		// All that sluice's own are, but for the mark.
		"addr add 192.168.77.2/32 dev up7 noprefixroute scope host", "addr add fd00:77::3/128 dev up7 noprefixroute nodad preferred_lft 0"} {
		if _, err := d.run("", "ip", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	o := d.options()
	o.Link = "up7"
	check := func(when string) {
		t.Helper()
		out, err := d.run("", "ip", "-br", "addr", "show", "dev", "up7")
		for _, a := range []string{"192.168.77.1/32", "192.168.77.2/32", "fd00:77::1/128", "fd00:77::2/128", "fd00:77::3/128"} {
			if err != nil || !strings.Contains(out, a) {
				t.Errorf("%s: %s is gone: %s, %v", when, a, out, err)
			}
		}
		for _, a := range []string{"10.96.0.80/32", "fd00:10:96::80/128", "10.96.0.81/32"} {
			if there := strings.Contains(out, a); there != (when == "in force" || when == "replaced" && a == "10.96.0.81/32") {
				t.Errorf("%s: %s is there: %v: %s", when, a, there, out)
			}
		}
	}
	p := parse(t, `service shop/web
  port http  10.96.0.80:80/TCP        ClusterIP  masquerade=outside balance=random
    forward 1 member, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/TCP  ClusterIP  masquerade=outside balance=random
    forward 1 member, total 1
      [fd00:10:244::2]:9000  weight 1  100.0 %  active
  port more  10.96.0.81:80/TCP        ClusterIP  masquerade=outside balance=random
    forward 1 member, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
`)
	for _, end := range []func() error{
		nil,
		func() error { _, err := Cleanup(context.Background(), o); return err },
		func() error { _, err := Retire(context.Background(), o, true); return err },
	} {
		b, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		d.apply(b, p, nil)
		check("in force")
		if end == nil {
			d.must("ip", "addr", "replace", "10.96.0.81/32", "dev", "up7") // is somebody else's from now on
			none := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
			d.apply(b, none, plan.Diff(p, none))
			d.settle(b, none)
			check("replaced")
			d.must("ip", "addr", "del", "10.96.0.81/32", "dev", "up7")
			b.Close()
			continue
		}
		b.Close()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		check("afterwards")
	}
}

func TestAnAddressThatTheNodeHasAnywayIsLeftWhereItIs(t *testing.T) {
	d := newBed(t)
	b := d.open()
	d.apply(b, frontend(t, "192.168.7.7:80/TCP  ExternalIP", "", []int{1}), nil)
	if a := d.ask(d.Client, "tcp", "192.168.7.7:80"); a.Server != "p1" {
		t.Errorf("went to %s", a.Server)
	}
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("192.168.7.7:22"), "the node's own")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if a, err := d.Client.Ask("tcp", netip.MustParseAddrPort("192.168.7.7:22"), soon); err != nil && !strings.Contains(err.Error(), "unexpected greeting") {
		t.Errorf("the node's other ports: %v, %v", a, err)
	}
	if out, err := d.run("", "ip", "-br", "link"); err != nil || strings.Contains(out, DefaultLink) {
		t.Errorf("the link was made for nothing: %s, %v", out, err)
	}
}

func TestTheNodesServersAreNotMetAtAServicesAddress(t *testing.T) {
	d := newBed(t)
	b := d.open()
	d.apply(b, frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1}), nil)
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), soon); !netlab.Refused(err) {
		t.Errorf("got %v, want a refusal", err)
	}
	if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("192.168.0.1:2222"), soon); err != nil {
		t.Errorf("at the node's own address: %v", err)
	}
}

// TestKilledBetweenAnyTwoMessages: whatever is left, each member is one of the old or the new plan, every frontend of
// both has members with weight, and the next start brings the rest.
func TestKilledBetweenAnyTwoMessages(t *testing.T) {
	d := newBed(t)
	prev := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1, 3, 0})
	next := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{0, 1, 2, 5})
	for k, f := range web(t, 1, 1).Frontends {
		next.Frontends[k] = f
	}
	for n := 1; ; n++ {
		b := d.open()
		d.apply(b, prev, nil)
		f := inject(b)
		f.fault = &fault{left: n, dead: true}
		_, err := b.Apply(context.Background(), next, plan.Diff(prev, next))
		fired := f.fault.fired
		b.Close()
		b = d.open()
		got, rerr := b.Read(context.Background())
		if rerr != nil {
			t.Fatal(rerr)
		}
		if fired != (err != nil) {
			t.Fatalf("message %d: fired %v, error %v", n, fired, err)
		}
		for k, f := range got.Frontends {
			if f.Pool.Total() == 0 {
				t.Errorf("message %d: %s has no member with weight", n, k)
			}
			for _, m := range f.Pool.Members {
				if !hasMember(prev.Frontends[k], m) && !hasMember(next.Frontends[k], m) && !(k.Addr.String() == "203.0.113.5" && m.Weight == 0) {
					t.Errorf("message %d: %s has %v, which is neither old nor new", n, k, m)
				}
			}
		}
		for k := range prev.Frontends {
			if got.Frontends[k] == nil {
				t.Errorf("message %d: %s is gone", n, k)
			}
		}
		d.apply(b, next, nil)
		b.Close()
		if !fired {
			t.Logf("%d messages", n-1)
			return
		}
	}
}

func hasMember(f *plan.Frontend, m plan.Member) bool {
	return f != nil && slices.ContainsFunc(f.Pool.Members, func(o plan.Member) bool { return o.Addr == m.Addr && o.Weight == m.Weight })
}

// TestAChangeOfModeInWhichAFrontendFailsDoesNotHappen has nftables forward on, and the rest later at a start.
func TestAChangeOfModeInWhichAFrontendFailsDoesNotHappen(t *testing.T) {
	d := newBed(t)
	p := web(t, 1)
	nft, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.t }})
	if err != nil {
		t.Fatal(err)
	}
	defer nft.Close()
	if _, err := nft.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	d.must("ipvsadm", "-A", "-t", "10.96.0.80:80", "-s", "rr")
	for k, f := range frontend(t, "10.97.0.1:80/TCP  ClusterIP", "", []int{1}).Frontends {
		p.Frontends[k] = f
	}
	o := d.options()
	o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for try := range patience + 1 {
		_, err := b.Apply(context.Background(), p, nil)
		if err == nil || !strings.Contains(err.Error(), "excludeCIDRs") {
			t.Fatalf("try %d: %v", try, err)
		}
		if try < patience {
			d.ask(d.Client, "tcp", "10.96.0.80:80") // not lost
			if got, err := nft.Read(context.Background()); err != nil || len(got.Frontends) != 1 {
				t.Errorf("try %d: %v, %v", try, got, err)
			}
		}
	}
	d.ask(d.Client, "tcp", "10.97.0.1:80") // a start goes on without the one that fails
}

// TestChangingTheModeRefusesNoConnection goes from nftables to IPVS and back while clients connect.
func TestChangingTheModeRefusesNoConnection(t *testing.T) {
	d := newBed(t)
	p := web(t, 1, 1)
	nft, err := nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: func() time.Time { return d.t }})
	if err != nil {
		t.Fatal(err)
	}
	defer nft.Close()
	if _, err := nft.Apply(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	old := d.hold("10.96.0.80:80")
	stop, ended := make(chan struct{}), make(chan error)
	var made int
	var slowest time.Duration
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			begin := time.Now()
			if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("10.96.0.80:80"), soon); err != nil {
				ended <- err
				return
			}
			made++
			slowest = max(slowest, time.Since(begin))
		}
	}()
	var last net.Conn
	for range 3 {
		b := d.open()
		d.apply(b, p, nil)
		if err := alive(old); err != nil {
			t.Errorf("a connection from before IPVS: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		last = d.hold("10.96.0.80:80")
		b.Close()
		if _, err := nft.Apply(context.Background(), p, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		left, err := Retire(context.Background(), d.options(), false)
		if err != nil || left == 0 {
			t.Errorf("retired to %d virtual servers, %v: one has a connection", left, err)
		}
		if err := alive(last); err != nil {
			t.Errorf("a connection from IPVS: %v", err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("after %d connections: %v", made, err)
	}
	if slowest >= time.Second {
		t.Errorf("one took %s: its first packet got lost", slowest)
	}
	t.Logf("%d connections meanwhile, the slowest took %s", made, slowest)
	if _, err := Cleanup(context.Background(), d.options()); err != nil {
		t.Error(err)
	}
	if _, err := Retire(context.Background(), d.options(), false); err != nil && !errors.Is(err, ErrNoIPVS) {
		t.Error(err)
	}
}
