package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"golang.org/x/sys/unix"
)

func TestProcessesOnTheNodeDoNotAppearAsTheServiceAddress(t *testing.T) {
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

func TestHairpinConnectionsAreMasqueraded(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, web(t, 1), nil)
	for range 5 {
		if a := d.ask(d.Pods[0], "tcp", "10.96.0.80:80"); a.Server != "p1" || a.Client.Addr() == d.Pods[0].Addrs[0] {
			t.Errorf("%s sees %s", a.Server, a.Client)
		}
	}
}

func TestAConnectionWhoseConntrackEntryIsDeletedIsReset(t *testing.T) {
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
		n, err := (&conntrack.Table{}).Reset(context.Background(), []plan.Reset{{Frontend: p.Keys()[0], Endpoint: netip.MustParseAddrPort("10.244.0.1:9000")}}, nil)
		if err == nil && n.Connections != 1 {
			err = fmt.Errorf("%d connections", n.Connections)
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

func TestEachBalanceHasItsScheduler(t *testing.T) {
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
			t.Errorf("a scheduler that does not exist: %v", err)
		}
	}
}

// hashed returns a plan with source hash.
func hashed(t *testing.T, what string, weights ...int) *plan.Plan {
	p := frontend(t, what, "", weights)
	for k, f := range p.Frontends {
		g := *f
		g.Balance = plan.SourceHash
		p.Frontends[k] = &g
	}
	return p
}

func TestSourceHashSelectsTheSameDestinationForAClient(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, hashed(t, "10.96.0.80:80/TCP  ClusterIP", 1, 1, 1, 1), nil)
	first := d.ask(d.Client, "tcp", "10.96.0.80:80").Server
	for range 8 {
		if a := d.ask(d.Client, "tcp", "10.96.0.80:80"); a.Server != first {
			t.Errorf("connected to %s, before to %s", a.Server, first)
		}
	}
}

// The turns of mh follow the order in which destinations were added, so virtual servers with the same destinations, as on two
// nodes, can disagree about a client. They do about few.
func TestSourceHashDependsLittleOnTheOrderOfDestinations(t *testing.T) {
	requireIPVS(t)
	d := newEnvOf(t, 8)
	b := d.open()
	var clients []netip.Addr
	for i := range 200 {
		a := netip.AddrFrom4([4]byte{192, 168, 100, byte(i + 1)})
		if err := d.Lab.Node.AddAddr("lo", a); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, a)
	}
	servers := func(of string) (seen []string) {
		for _, c := range clients {
			a, err := d.Lab.Node.AskFrom("tcp", c, netip.MustParseAddrPort(of), askTimeout)
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, a.Server)
		}
		return seen
	}
	d.apply(b, hashed(t, "10.96.0.80:80/TCP  ClusterIP", 1, 1, 1, 1, 1, 1, 1, 1), nil)
	before := servers("10.96.0.80:80")
	for _, weights := range [][]int{{-1, -1, -1, -1, -1, 1, -1, -1}, {-1, -1, 1, -1, -1, 1, -1, 1}, {-1, 1, 1, -1, 1, 1, -1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}} {
		d.apply(b, hashed(t, "10.96.0.81:80/TCP  ClusterIP", weights...), nil)
	}
	other := 0
	for i, s := range servers("10.96.0.81:80") {
		if s != before[i] {
			other++
		}
	}
	if t.Logf("%d of %d clients have another destination", other, len(clients)); other > len(clients)/6 {
		t.Errorf("%d of %d clients have another destination", other, len(clients))
	}
}
