package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/conform"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/netlab"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

func TestConformance(t *testing.T) { conform.Run(t, subject) }

// elsewhere is a table that is not ours, as much like ours as can be.
const elsewhere = `table inet sluice {
	comment "not sluice's"
	map slots {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 10.96.4.1 . tcp . 80 : 10.9.9.9 . 80 }
	}
	chain services {
		type filter hook forward priority 50; policy accept;
		ct state established counter
	}
}
table ip sluice2 {
	set frontends { type ipv4_addr . inet_proto . inet_service; elements = { 10.96.4.1 . tcp . 80 comment "shop/web ClusterIP" } }
}
`

func subject(t *testing.T) conform.Subject {
	d := newBed(t, 5)
	var open *Backend
	s := conform.Subject{
		Open: func() (engine.Backend, error) {
			var err error
			open, err = Open(Options{Netns: d.lab.Node.Fd(), Now: d.clock.now})
			return open, err
		},
		Cleanup: func(ctx context.Context) error {
			_, err := Cleanup(ctx, Options{Netns: d.lab.Node.Fd()})
			return err
		},
		Advance: func(by time.Duration) { d.clock.t = d.clock.t.Add(by); time.Sleep(by) },
		Inject: func(k int, lost bool) func() bool {
			f := &fault{after: k, lost: lost}
			open.conn.fault = f
			return func() bool { open.conn.fault = nil; return f.fired }
		},
		Foreign: func() (func() error, error) {
			if out, err := d.nft(elsewhere, "-f", "-"); err != nil {
				return nil, fmt.Errorf("%s: %w", out, err)
			}
			list := func() string {
				a, err := d.nft("", "list", "table", "inet", "sluice")
				b, berr := d.nft("", "list", "table", "ip", "sluice2")
				return fmt.Sprint(a, b, err, berr)
			}
			before := list()
			return func() error {
				if now := list(); now != before {
					return fmt.Errorf("was %s\nis %s", before, now)
				}
				return nil
			}, nil
		},
		Drift: func(k plan.Key) error {
			table, elem := "ip", ""
			if k.Family() == model.IPv6 {
				table = "ip6"
			}
			proto := strings.ToLower(k.Protocol.String())
			if elem = fmt.Sprintf("nodeports { %s . %d }", proto, k.Port); !k.IsNodePort() {
				elem = fmt.Sprintf("frontends { %s . %s . %d }", k.Addr, proto, k.Port)
			}
			out, err := d.nft(fmt.Sprintf("delete element %s sluice %s\n", table, elem), "-f", "-")
			if err != nil {
				return fmt.Errorf("%s: %w", out, err)
			}
			return nil
		},
		Traces: func() ([]string, error) {
			out, err := d.nft("", "list", "ruleset")
			if strings.TrimSpace(out) == "" {
				return nil, err
			}
			return []string{out}, err
		},
	}
	s.Wire = wire(t, d)
	return s
}

// wire connects from a Pod that is no member, from one that is, from the node and from outside. One of the node's
// addresses is in the Pods' range, as that of a bridge to them is.
func wire(t *testing.T, d *bed) *conform.Wire {
	bridge4, bridge6 := netip.MustParseAddr("10.244.0.254"), netip.MustParseAddr("fd00:10:244::fe")
	for _, a := range []netip.Addr{bridge4, bridge6} {
		if err := d.lab.Node.AddAddr("lo", a); err != nil {
			t.Fatal(err)
		}
	}
	w := &conform.Wire{
		Global: plan.Global{
			NodePortAddrs:  []netip.Addr{node4, node6},
			PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")},
			MasqueradeMark: 0x4000,
		},
		Protocols: []model.Protocol{model.TCP, model.UDP},
		Parallel:  48,
	}
	for _, a := range []netip.Addr{node4, node6, other4, other6} {
		at := netip.AddrPortFrom(a, 9000)
		for _, p := range w.Protocols {
			d.serve(d.lab.Node, at, p, at.String())
		}
		w.OnNode = append(w.OnNode, at)
	}
	w.Listen = func(to netip.AddrPort, p model.Protocol) (func(), error) {
		h := d.lab.Node
		if !slices.Contains(w.Node, to.Addr()) {
			if h = d.lab.World; !slices.Contains(h.Addrs, to.Addr()) {
				if err := h.AddAddr("lo", to.Addr()); err != nil {
					return nil, err
				}
			}
		}
		s, err := h.Serve(strings.ToLower(p.String()), to, elsewhereServer)
		if err != nil {
			return nil, err
		}
		return s.Close, nil
	}
	for _, h := range []string{"169.254.1.1"} {
		w.Node = append(w.Node, netip.MustParseAddr(h))
	}
	w.Node = append(w.Node, d.lab.Node.Addrs...)
	hosts := map[string]*netlab.Host{}
	for i, h := range append(slices.Clone(d.pods), d.lab.Node, d.client) {
		name := h.Name
		if i < 4 {
			for _, a := range h.Addrs {
				w.Members = append(w.Members, netip.AddrPortFrom(a, 9000))
			}
			if i > 0 {
				continue // one Pod that serves and asks is enough
			}
		}
		for _, a := range []netip.Addr{h.Addr(node4), h.Addr(node6)} {
			iface := "v-" + name
			if h == d.lab.Node {
				iface = ""
			}
			w.Clients = append(w.Clients, conform.Client{Name: name + " " + a.String(), From: a, Interface: iface})
			hosts[w.Clients[len(w.Clients)-1].Name] = h
		}
	}
	for _, a := range []netip.Addr{other4, other6, bridge4, bridge6} {
		// To a Pod, the kernel chooses the IPv6 address that is most like the Pod's.
		c := conform.Client{Name: "node " + a.String(), From: a, Plain: a != bridge6}
		w.Clients = append(w.Clients, c)
		hosts[c.Name] = d.lab.Node
	}
	w.Connect = func(c conform.Client, to netip.AddrPort, p model.Protocol) (conform.Seen, error) {
		patience := 250 * time.Millisecond
		if c.Patience > 0 {
			patience = c.Patience
		}
		return connect(hosts[c.Name], c.From, to, p, patience)
	}
	return w
}

// elsewhereServer is the name of servers that only what sluice leaves alone can reach.
const elsewhereServer = "elsewhere"

func (d *bed) serve(h *netlab.Host, at netip.AddrPort, p model.Protocol, name string) {
	d.Helper()
	s, err := h.Serve(strings.ToLower(p.String()), at, name)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(s.Close)
}

func connect(h *netlab.Host, from netip.Addr, to netip.AddrPort, p model.Protocol, patience time.Duration) (conform.Seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := h.DialFrom(ctx, strings.ToLower(p.String()), from, to)
	switch {
	case netlab.Refused(err):
		return conform.Seen{Verdict: plan.Reject}, nil
	case netlab.TimedOut(err):
		return conform.Seen{Verdict: plan.Drop}, nil
	case err != nil:
		return conform.Seen{}, err
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	ask := func() (netlab.Answer, error) {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if p == model.UDP {
			// EPERM is what this node itself gets at once, rejected or dropped; which of the two shows only below.
			if _, err := conn.Write([]byte("who?")); err != nil && !errors.Is(err, unix.EPERM) {
				return netlab.Answer{}, err
			}
		}
		return netlab.Greeting(conn)
	}
	a, err := ask()
	if err != nil {
		conn.Close()
		switch {
		case p == model.UDP && netlab.Refused(err):
			return conform.Seen{Verdict: plan.Reject}, nil
		case netlab.TimedOut(err):
			return conform.Seen{Verdict: plan.Drop}, nil
		}
		return conform.Seen{}, err
	}
	member := func(name string) netip.AddrPort {
		if at, err := netip.ParseAddrPort(name); err == nil {
			return at // on the node
		}
		n := strings.TrimPrefix(name, "p")
		if to.Addr().Is4() {
			return netip.MustParseAddrPort("10.244.0." + n + ":9000")
		}
		return netip.MustParseAddrPort("[fd00:10:244::" + n + "]:9000")
	}
	if a.Server == elsewhereServer {
		conn.Close()
		return conform.Seen{Passed: true}, nil
	}
	seen := conform.Seen{Verdict: plan.Forward, Member: member(a.Server), Source: a.Client.Addr(), Close: func() { conn.Close() }}
	seen.Again = func() (netip.AddrPort, error) {
		if p == model.UDP {
			a, err := ask()
			return member(a.Server), err
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if _, err := conn.Write([]byte("still there\n")); err != nil {
			return netip.AddrPort{}, err
		}
		buf := make([]byte, 12)
		n, err := conn.Read(buf)
		if err == nil && string(buf[:n]) != "still there\n" {
			err = errors.New("the echo is garbled: " + string(buf[:n]))
		}
		return seen.Member, err
	}
	return seen, nil
}
