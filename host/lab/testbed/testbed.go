// Package testbed provides a network for the conformance kit: a node with Pods and a client in network namespaces, and
// connections through what is programmed in the node.
package testbed

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

	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"golang.org/x/sys/unix"
)

// Bed is a lab with Pods p1, p2, …, each with servers, and a client that is not a Pod.
type Bed struct {
	Lab    *testnet.Lab
	Pods   []*testnet.Host
	Client *testnet.Host
}

var (
	node4, node6   = netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00:192::1")
	other4, other6 = netip.MustParseAddr("192.168.7.7"), netip.MustParseAddr("fd00:192::7")
)

// Protocols returns the protocols that servers can use on this kernel: TCP, UDP, and SCTP if the kernel has it; the test
// log says so if not.
func Protocols(t testing.TB) []model.Protocol {
	out := []model.Protocol{model.TCP, model.UDP}
	if err := testnet.SCTP(); err != nil {
		t.Logf("SCTP is not tested: %v", err)
		return out
	}
	return append(out, model.SCTP)
}

// New creates a lab with Pods that serve all of Protocols on port 9000 in both families. Pod n has the addresses
// 10.244.0.n and fd00:10:244::n.
func New(t testing.TB, pods int) *Bed {
	t.Helper()
	l, err := testnet.New(node4, node6, other4, other6)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	d, protocols := &Bed{Lab: l}, Protocols(t)
	host := func(name, v4, v6 string) *testnet.Host {
		h, err := l.AddHost(name, netip.MustParseAddr(v4), netip.MustParseAddr(v6))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for i := 1; i <= pods; i++ {
		p := host(fmt.Sprintf("p%d", i), fmt.Sprintf("10.244.0.%d", i), fmt.Sprintf("fd00:10:244::%x", i))
		d.Pods = append(d.Pods, p)
		for _, a := range p.Addrs {
			for _, proto := range protocols {
				serve(t, p, netip.AddrPortFrom(a, 9000), proto, p.Name)
			}
		}
	}
	d.Client = host("client", "198.51.100.9", "2001:db8::9")
	return d
}

// Traffic connects from a Pod that is not an endpoint, from one that is, from the node and from outside. One of the node's
// addresses is in the Pods' range, as that of a bridge to them is.
func (d *Bed) Traffic(t *testing.T) *conformance.Traffic {
	bridge4, bridge6 := netip.MustParseAddr("10.244.0.254"), netip.MustParseAddr("fd00:10:244::fe")
	for _, a := range []netip.Addr{bridge4, bridge6} {
		if err := d.Lab.Node.AddAddr("lo", a); err != nil {
			t.Fatal(err)
		}
	}
	w := &conformance.Traffic{
		Global: plan.Global{
			NodePortAddrs:  []netip.Addr{node4, node6},
			PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")},
			MasqueradeMark: 0x4000,
		},
		Protocols: Protocols(t),
		Parallel:  48,
	}
	for _, a := range []netip.Addr{node4, node6, other4, other6} {
		at := netip.AddrPortFrom(a, 9000)
		for _, p := range w.Protocols {
			serve(t, d.Lab.Node, at, p, at.String())
		}
		w.HostNetworkServers = append(w.HostNetworkServers, at)
	}
	w.Listen = func(to netip.AddrPort, p model.Protocol) (func(), error) {
		h := d.Lab.Node
		if !slices.Contains(w.Node, to.Addr()) {
			if h = d.Lab.World; !slices.Contains(h.Addrs, to.Addr()) {
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
	w.Node = append(w.Node, d.Lab.Node.Addrs...)
	hosts := map[string]*testnet.Host{}
	for i, h := range append(slices.Clone(d.Pods), d.Lab.Node, d.Client) {
		name := h.Name
		if i < 4 {
			for _, a := range h.Addrs {
				w.Servers = append(w.Servers, netip.AddrPortFrom(a, 9000))
			}
			if i > 0 {
				continue // one Pod that serves and asks is enough
			}
		}
		for _, a := range []netip.Addr{h.Addr(node4), h.Addr(node6)} {
			iface := "v-" + name
			if h == d.Lab.Node {
				iface = ""
			}
			w.Clients = append(w.Clients, conformance.Client{Name: name + " " + a.String(), From: a, Interface: iface})
			hosts[w.Clients[len(w.Clients)-1].Name] = h
		}
	}
	for _, a := range []netip.Addr{other4, other6, bridge4, bridge6} {
		// To a Pod, the kernel chooses the IPv6 address that is most like the Pod's.
		c := conformance.Client{Name: "node " + a.String(), From: a, ExplicitSource: a != bridge6}
		w.Clients = append(w.Clients, c)
		hosts[c.Name] = d.Lab.Node
	}
	w.Connect = func(c conformance.Client, to netip.AddrPort, p model.Protocol) (conformance.Outcome, error) {
		timeout := 250 * time.Millisecond
		if c.Timeout > 0 {
			timeout = c.Timeout
		}
		return connect(hosts[c.Name], c.From, to, p, timeout)
	}
	return w
}

// elsewhereServer is the name of servers that only connections which sluice does not handle can reach.
const elsewhereServer = "elsewhere"

func serve(t testing.TB, h *testnet.Host, at netip.AddrPort, p model.Protocol, name string) {
	t.Helper()
	s, err := h.Serve(strings.ToLower(p.String()), at, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
}

func connect(h *testnet.Host, from netip.Addr, to netip.AddrPort, p model.Protocol, timeout time.Duration) (conformance.Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := h.DialFrom(ctx, strings.ToLower(p.String()), from, to)
	switch {
	case testnet.Refused(err):
		return conformance.Outcome{Verdict: plan.Reject}, nil
	case testnet.TimedOut(err):
		return conformance.Outcome{Verdict: plan.Drop}, nil
	case err != nil:
		return conformance.Outcome{}, err
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	ask := func() (testnet.Answer, error) {
		_ = conn.SetDeadline(time.Now().Add(timeout))
		if p == model.UDP {
			// EPERM is what this node itself gets at once, rejected or dropped; which of the two shows only below.
			if _, err := conn.Write([]byte("who?")); err != nil && !errors.Is(err, unix.EPERM) {
				return testnet.Answer{}, err
			}
		}
		return testnet.Greeting(conn)
	}
	a, err := ask()
	if err != nil {
		conn.Close()
		switch {
		case p == model.UDP && testnet.Refused(err):
			return conformance.Outcome{Verdict: plan.Reject}, nil
		case testnet.TimedOut(err):
			return conformance.Outcome{Verdict: plan.Drop}, nil
		}
		return conformance.Outcome{}, err
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
		return conformance.Outcome{NotProxied: true}, nil
	}
	seen := conformance.Outcome{Verdict: plan.Forward, Server: member(a.Server), Source: a.Client.Addr(), Close: func() { conn.Close() }}
	seen.Reuse = func() (netip.AddrPort, error) {
		if p == model.UDP {
			a, err := ask()
			return member(a.Server), err
		}
		_ = conn.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
		if _, err := conn.Write([]byte("still there\n")); err != nil {
			return netip.AddrPort{}, err
		}
		buf := make([]byte, 12)
		n, err := conn.Read(buf)
		if err == nil && string(buf[:n]) != "still there\n" {
			err = errors.New("the echo is garbled: " + string(buf[:n]))
		}
		return seen.Server, err
	}
	return seen, nil
}
