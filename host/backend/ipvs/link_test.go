package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestVIPsMayBeOnAnExistingLink(t *testing.T) {
	d := newEnv(t)
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
		t.Errorf("a link that does not exist: %v, %v", c, err)
	}
}

// TestNodeAddressesOnTheLinkAreNeverDeleted uses addresses as network managers and clouds add them.
func TestNodeAddressesOnTheLinkAreNeverDeleted(t *testing.T) {
	d := newEnv(t)
	for _, args := range []string{"link add up7 type dummy", "link set up7 up", "addr add 192.168.77.1/32 dev up7 noprefixroute",
		"addr add fd00:77::1/128 dev up7 noprefixroute", "addr add fd00:77::2/128 dev up7 noprefixroute preferred_lft 0 valid_lft 3000",
		// Like those of sluice, except for the metric.
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
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/TCP  ClusterIP  masquerade=outside balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::2]:9000  weight 1  100.0 %  active
  port more  10.96.0.81:80/TCP        ClusterIP  masquerade=outside balance=random
    forward 1 endpoint, total 1
      10.244.0.2:9000  weight 1  100.0 %  active
`)
	for _, end := range []func() error{
		nil,
		func() error { _, err := Cleanup(context.Background(), o); return err },
		func() error { _, err := DrainAll(context.Background(), o, true); return err },
	} {
		b, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		d.apply(b, p, nil)
		check("in force")
		if end == nil {
			d.mustRun("ip", "addr", "replace", "10.96.0.81/32", "dev", "up7") // no longer sluice's
			none := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
			d.apply(b, none, plan.Diff(p, none))
			d.settle(b, none)
			check("replaced")
			d.mustRun("ip", "addr", "del", "10.96.0.81/32", "dev", "up7")
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

func TestLocalVIPIsNotAddedToTheLink(t *testing.T) {
	d := newEnv(t)
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
	if a, err := d.Client.Ask("tcp", netip.MustParseAddrPort("192.168.7.7:22"), askTimeout); err != nil && !strings.Contains(err.Error(), "unexpected greeting") {
		t.Errorf("another port of the node's address: %v, %v", a, err)
	}
	if out, err := d.run("", "ip", "-br", "link"); err != nil || strings.Contains(out, DefaultLink) {
		t.Errorf("the link was created needlessly: %s, %v", out, err)
	}
}

func TestNodeSocketsAreUnreachableAtAVIP(t *testing.T) {
	d := newEnv(t)
	b := d.open()
	d.apply(b, frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1}), nil)
	s, err := d.Lab.Node.Serve("tcp", netip.MustParseAddrPort("0.0.0.0:2222"), "sshd")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("203.0.113.5:2222"), askTimeout); !testnet.Refused(err) {
		t.Errorf("got %v, want a rejection", err)
	}
	if _, err := d.Client.Ask("tcp", netip.MustParseAddrPort("192.168.0.1:2222"), askTimeout); err != nil {
		t.Errorf("at the node's own address: %v", err)
	}
}

// TestChangingTheLinkKeepsConnections changes ipvs.interface repeatedly, and then cleans up.
func TestChangingTheLinkKeepsConnections(t *testing.T) {
	d := newEnv(t)
	for _, link := range []string{"up7", "up8"} {
		d.mustRun("ip", "link", "add", link, "type", "dummy")
		d.mustRun("ip", "link", "set", link, "up")
	}
	p := frontend(t, "203.0.113.5:80/TCP  LoadBalancer", "", []int{1})
	for k, f := range web(t, 1).Frontends {
		p.Frontends[k] = f
	}
	var conns []net.Conn
	o := d.options()
	links := []string{DefaultLink, "up7", "up8", DefaultLink}
	for i, link := range links {
		o.Link = link
		b, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		d.apply(b, p, nil)
		for _, l := range links {
			out, _ := d.run("", "ip", "-br", "addr", "show", "dev", l)
			if on := strings.Contains(out, "10.96.0.80/32") && strings.Contains(out, "203.0.113.5/32"); on != (l == link) {
				t.Errorf("ipvs.interface %s: on %s: %s", link, l, out)
			}
		}
		if link != DefaultLink && strings.Contains(d.mustRun("ip", "-br", "link"), DefaultLink) {
			t.Errorf("ipvs.interface %s: %s still exists", link, DefaultLink)
		}
		if m, err := b.Drifted(context.Background()); m || err != nil {
			t.Errorf("drifted %v, %v", m, err)
		}
		if i == 2 {
			d.settle(b, p)
		}
		conns = append(conns, d.dial("10.96.0.80:80"))
		for _, c := range conns {
			if err := checkAlive(c); err != nil {
				t.Errorf("ipvs.interface %s: a connection: %v", link, err)
			}
		}
		b.Close()
	}
	bound, err := boundVIPsIn(d, "up8")
	if err != nil || len(bound) != 2 {
		t.Errorf("bound %v, %v", bound, err)
	}
	// Cleanup does not need to know the link.
	d.mustRun("ip", "addr", "add", "198.51.100.1/32", "dev", DefaultLink)
	o.Link = "up7"
	if _, err := Cleanup(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if out := d.mustRun("ip", "-br", "addr"); strings.Contains(out, "10.96.0.80") || !strings.Contains(out, "198.51.100.1/32") {
		t.Errorf("left, or another program's address deleted: %s", out)
	}
	d.mustRun("ip", "addr", "del", "198.51.100.1/32", "dev", DefaultLink)
	if _, err := Cleanup(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if out := d.mustRun("ip", "-br", "link"); strings.Contains(out, DefaultLink) {
		t.Errorf("left: %s", out)
	}
}

// boundVIPsIn calls BoundVIPs in the node.
func boundVIPsIn(d *env, link string) (bound map[netip.Addr]bool, err error) {
	err = d.Lab.Node.Do(func() error {
		bound, err = BoundVIPs(link)
		return err
	})
	return bound, err
}

// TestAddedVIPsAreLocal moves IPv6 addresses from link to link. The kernel acknowledges an address before packets to it stay on
// the node.
func TestAddedVIPsAreLocal(t *testing.T) {
	d := newEnv(t)
	err := d.Lab.Node.Do(func() error {
		var links [2]*kernelLink
		for i, name := range []string{"up7", "up8"} {
			d.mustRun("ip", "link", "add", name, "type", "dummy")
			l, err := openLink(0, name)
			if err != nil {
				return err
			}
			defer l.close()
			if _, err := l.ensureLink(); err != nil {
				return err
			}
			links[i] = l
		}
		for i := range 500 {
			a := netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 0x1000+i))
			for k, l := range links {
				if err := cmp.Or(l.addAddr(a), l.awaitLocal(a)); err != nil {
					return err
				}
				if k > 0 {
					if err := links[k-1].delAddr(a); err != nil {
						return err
					}
				}
				if at, err := l.locate(a); err != nil {
					return fmt.Errorf("%s on %s: %w", a, l.name, err)
				} else if at != onNode {
					return fmt.Errorf("%s on %s: %v", a, l.name, at)
				}
			}
		}
		if links[0].awaitLocal(netip.MustParseAddr("fd00:10:96::1001")) == nil {
			return errors.New("an address is local with a link that does not have it")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
