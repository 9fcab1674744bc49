package nftables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// resets returns a check of connections from a host to a frontend.
func (d *testEnv) resets(p *plan.Plan, from *testnet.Host, to string) *testbed.Resets {
	return &testbed.Resets{Node: d.lab.Node, Client: from, Plan: p, To: netip.MustParseAddrPort(to), Table: &conntrack.Table{}, TCP: d.b}
}

// TestResetConnectionsMeetRST: the next packet of each connection that is shed, or whose endpoint is reset and keeps its weight,
// is answered with RST, wherever the client is and whether it is masqueraded or not. No other connection is touched.
func TestResetConnectionsMeetRST(t *testing.T) {
	d := newTestEnv(t, 3)
	for _, masquerade := range []string{"never", "always"} {
		var frontends []string
		for _, key := range []string{"10.96.0.10:80/TCP ClusterIP", "*4:30080/TCP NodePort", "[fd00:10:96::a]:80/TCP ClusterIP", "*6:30080/TCP NodePort"} {
			frontends = append(frontends, frontend(key+" masquerade="+masquerade, "1 2"))
		}
		p := d.apply(service(frontends...))
		for _, to := range []string{"10.96.0.10:80", "192.168.0.1:30080", "[fd00:10:96::a]:80", "[fd00:192::1]:30080"} {
			for _, from := range []*testnet.Host{d.client, d.lab.Node, d.pods[0], d.pods[2]} { // p1 to itself is a hairpin
				for _, all := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/%s/all=%t", masquerade, from.Name, to, all), func(t *testing.T) {
						c := d.resets(p, from, to)
						c.All = all
						c.Check(t)
					})
				}
			}
		}
	}
}

// TestResetConnectionsStayResetWhateverHappensBefore their clients send again.
func TestResetConnectionsStayResetWhateverHappensBefore(t *testing.T) {
	d := newTestEnv(t, 2)
	text := service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1 2"))
	for _, test := range []struct {
		name string
		then func(t *testing.T, p *plan.Plan)
	}{
		{"restart", func(t *testing.T, p *plan.Plan) {
			d.restart()
			if r, err := d.b.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}},
		{"the table is replaced", func(t *testing.T, p *plan.Plan) {
			d.breakTable()
			if _, err := d.b.Apply(context.Background(), p, nil); err != nil {
				t.Error(err)
			}
		}},
		{"the Service loses its endpoints", func(t *testing.T, _ *plan.Plan) {
			d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "reject")))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := d.apply(text)
			c := d.resets(p, d.client, "10.96.0.10:80")
			c.Then = func() { test.then(t, p) }
			c.Check(t)
		})
	}
}

// breakTable adds a rule to the table with another socket, so that the next Apply replaces it.
func (d *testEnv) breakTable() {
	d.Helper()
	if out, err := d.nft("", "add", "rule", "ip", "sluice", "services", "counter"); err != nil {
		d.Fatal(err, out)
	}
}

// flushConntrack forgets all connections, as an operator can.
func (d *testEnv) flushConntrack() {
	d.Helper()
	if err := d.lab.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		d.Fatal(err)
	}
}

// dialFrom opens a connection from a port of the client and returns it with the name of its server.
func (d *testEnv) dialFrom(port uint16, to string) (net.Conn, string) {
	d.Helper()
	dialer := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{IP: d.client.Addr(node4).AsSlice(), Port: int(port)}}
	var c net.Conn
	err := d.client.Do(func() (err error) { c, err = dialer.Dial("tcp", to); return err })
	if err != nil {
		d.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(timeout))
	a, err := testnet.Greeting(c)
	if err != nil {
		d.Fatal(err)
	}
	return c, a.Server
}

func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte("still there\n")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 12))
	return err
}

// TestPortOfAResetConnectionCanBeUsedAgain: the next connection from the same addresses is an ordinary one. It survives that
// conntrack is flushed, as all connections do that are not masqueraded and have one endpoint, and so do those that were never
// reset.
func TestPortOfAResetConnectionCanBeUsedAgain(t *testing.T) {
	d := newTestEnv(t, 2)
	const vip, port = "10.96.0.10:80", 41000
	p := d.apply(service(frontend(vip+"/TCP ClusterIP masquerade=never", "1")))
	other, _ := d.dialFrom(port+1, vip)
	defer other.Close()
	first, _ := d.dialFrom(port, vip)
	r := d.resets(p, d.client, vip)
	n, err := 0, d.lab.Node.Do(func() error {
		n, err := d.b.ResetTCP(t.Context(), []plan.Connection{{Client: netip.AddrPortFrom(d.client.Addr(node4), port), Frontend: r.To}})
		if err == nil && n != 0 {
			err = fmt.Errorf("no room for %d", n)
		}
		return err
	})
	if err != nil || n != 0 {
		t.Fatal(n, err)
	}
	_ = first.(*net.TCPConn).SetLinger(0)
	first.Close() // the client is silent: conntrack does not know the packet
	d.flushConntrack()
	d.apply(service(frontend(vip+"/TCP ClusterIP masquerade=never", "2")))
	second, server := d.dialFrom(port, vip)
	defer second.Close()
	if server != "p2" {
		t.Fatalf("answered by %s", server)
	}
	for range 50 {
		d.flushConntrack()
		if err := echo(second); err != nil {
			t.Fatalf("the next connection from the port: %v", err)
		}
	}
	d.apply(service(frontend(vip+"/TCP ClusterIP masquerade=never", "1")))
	for range 50 {
		d.flushConntrack()
		if err := echo(other); err != nil {
			t.Fatalf("a connection that was not reset: %v", err)
		}
	}
}

// TestEndpointOfAResetConnectionMeetsRST: the endpoint is reset too when it sends before the client.
func TestEndpointOfAResetConnectionMeetsRST(t *testing.T) {
	d := newTestEnv(t, 2)
	at := netip.AddrPortFrom(d.pods[0].Addr(node4), 9001)
	var l net.Listener
	if err := d.pods[0].Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, masquerade := range []string{"never", "always"} {
		p := parse(t, service(frontend("10.96.0.10:80/TCP ClusterIP masquerade="+masquerade, "1")))
		for _, f := range p.Frontends {
			for i := range f.Pool.Endpoints {
				f.Pool.Endpoints[i].Addr = at
			}
		}
		if _, err := d.b.Apply(t.Context(), p, nil); err != nil {
			t.Fatal(err)
		}
		c, err := d.client.Dial(t.Context(), "tcp", netip.MustParseAddrPort("10.96.0.10:80"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		var n plan.ResetCount
		if err := d.lab.Node.Do(func() (err error) {
			n, err = (&conntrack.Table{}).Reset(t.Context(), []plan.Reset{{Frontend: p.Keys()[0], Endpoint: at}}, d.b)
			return err
		}); err != nil || n.Connections != 1 {
			t.Fatal(n, err)
		}
		for who, end := range map[string]net.Conn{"endpoint": server, "client": c} {
			_ = end.SetDeadline(time.Now().Add(timeout))
			_, err := end.Write([]byte("hello"))
			if err == nil {
				_, err = end.Read(make([]byte, 1))
			}
			if !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				t.Errorf("masquerade %s: the %s got %v, want a reset", masquerade, who, err)
			}
		}
	}
}

// TestResetsBeyondTheLimitAreCounted: the set is bounded, and there is room again for connections of the other family.
func TestResetsBeyondTheLimitAreCounted(t *testing.T) {
	d := newTestEnv(t, 0)
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1"), frontend("[fd00:10:96::a]:80/TCP ClusterIP masquerade=never", "1")))
	list := make([]plan.Connection, resetsSize+2*resetsPerTx)
	for i := range list {
		list[i] = plan.Connection{
			Client:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1+i>>16)),
			Frontend: netip.MustParseAddrPort("10.96.0.10:80"),
		}
	}
	six := plan.Connection{Client: netip.MustParseAddrPort("[fd00:10:244::9]:4000"), Frontend: netip.MustParseAddrPort("[fd00:10:96::a]:80")}
	left := 0
	if err := d.lab.Node.Do(func() (err error) { left, err = d.b.ResetTCP(t.Context(), append(list, six)); return err }); err != nil {
		t.Fatal(err)
	}
	if left < 2*resetsPerTx || left >= 3*resetsPerTx {
		t.Errorf("no room for %d of %d", left, len(list))
	}
	if got := d.countResets(); got[0] != len(list)-left || got[1] != 1 {
		t.Errorf("%d are in the tables, want %d and 1", got, len(list)-left)
	}
	if report, err := d.b.Apply(t.Context(), parse(t, service()), nil); err != nil {
		t.Errorf("%+v, %v", report, err)
	}
}

// countResets returns the number of connections in the set of each family.
func (d *testEnv) countResets() (n [2]int) {
	d.Helper()
	for i, f := range []model.Family{model.IPv4, model.IPv6} {
		table := newTable(f, d.b.conn, d.b.balancing, d.b.limits)
		list, err := table.dumpSettled(table.resets)
		if err != nil {
			d.Fatal(err)
		}
		n[i] = len(list)
	}
	return n
}

// TestWithoutTableNoConnectionIsRemembered: the caller learns it.
func TestWithoutTableNoConnectionIsRemembered(t *testing.T) {
	d := newTestEnv(t, 0)
	list := []plan.Connection{{Client: netip.MustParseAddrPort("10.244.0.9:4000"), Frontend: netip.MustParseAddrPort("10.96.0.10:80")}}
	if err := d.lab.Node.Do(func() error {
		if left, err := d.b.ResetTCP(t.Context(), list); left != 1 || err != nil {
			t.Errorf("%d, %v", left, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsToResetAreNoExternalChange: neither Watch nor Drifted takes them for one.
func TestConnectionsToResetAreNoExternalChange(t *testing.T) {
	d := newTestEnv(t, 0)
	d.apply(service(frontend("10.96.0.10:80/TCP ClusterIP masquerade=never", "1")))
	changes := d.watch()
	d.expectNoChange(changes, "the first plan")
	c := plan.Connection{Client: netip.MustParseAddrPort("10.244.0.9:4000"), Frontend: netip.MustParseAddrPort("10.96.0.10:80")}
	if err := d.lab.Node.Do(func() error { _, err := d.b.ResetTCP(t.Context(), []plan.Connection{c}); return err }); err != nil {
		t.Fatal(err)
	}
	d.expectNoChange(changes, "a connection to reset")
}
