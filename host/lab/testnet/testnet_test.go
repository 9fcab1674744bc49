package testnet

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/vm"
)

func TestMain(m *testing.M) {
	vm.Main()
	if os.Getenv(guestEnv) != "" {
		fmt.Fprintln(os.Stderr, serveInGuest())
		os.Exit(1)
	}
	Main(m)
}

func TestHostsReachEachOtherAndTheNode(t *testing.T) {
	addr := netip.MustParseAddr
	lab, err := New(addr("192.168.9.1"), addr("fd00:9::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	a, err := lab.AddHost("a", addr("10.1.0.2"), addr("fd00:1::2"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := lab.AddHost("b", addr("10.1.0.3"), addr("fd00:1::3"))
	if err != nil {
		t.Fatal(err)
	}
	networks := []string{"tcp", "udp"}
	if err := SCTP(); err != nil {
		t.Logf("SCTP is not tried: %v", err)
	} else {
		networks = append(networks, "sctp")
	}
	for _, network := range networks {
		for _, srv := range []*Host{b, lab.Node} {
			for _, at := range srv.Addrs {
				to := netip.AddrPortFrom(at, 80)
				s, err := srv.Serve(network, to, srv.Name)
				if err != nil {
					t.Fatal(err)
				}
				got, err := a.Ask(network, to, time.Minute)
				if err != nil {
					t.Fatalf("%s %s: %v", network, to, err)
				}
				if got.Server != srv.Name || got.Client.Addr() != a.Addr(at) {
					t.Errorf("%s %s: got %+v", network, to, got)
				}
				s.Close()
			}
		}
	}
	for _, network := range networks {
		for _, at := range b.Addrs {
			if _, err := a.Ask(network, netip.AddrPortFrom(at, 81), time.Minute); !Refused(err) {
				t.Errorf("closed port %s %s: got %v, want a refusal", network, at, err)
			}
			unused := addr("10.1.0.77")
			if at.Is6() {
				unused = addr("fd00:1::77")
			}
			if _, err := a.Ask(network, netip.AddrPortFrom(unused, 80), 700*time.Millisecond); err == nil || Refused(err) {
				t.Errorf("unused address %s %s: got %v", network, unused, err)
			}
		}
	}
}

func TestPodsOfSeveralNodesReachEachOther(t *testing.T) {
	addr := netip.MustParseAddr
	fabric, err := New(addr("172.18.0.1"), addr("fd00:18::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	var pods, nodes []*Host
	for i, name := range []string{"n1", "n2"} {
		node, err := fabric.AddNode(name,
			[]netip.Prefix{netip.MustParsePrefix([]string{"10.1.0.0/24", "10.2.0.0/24"}[i]), netip.MustParsePrefix([]string{"fd00:1::/64", "fd00:2::/64"}[i])},
			addr([]string{"172.18.0.11", "172.18.0.12"}[i]), addr([]string{"fd00:18::11", "fd00:18::12"}[i]))
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		pod, err := node.AddHost("pod", addr([]string{"10.1.0.2", "10.2.0.2"}[i]), addr([]string{"fd00:1::2", "fd00:2::2"}[i]))
		if err != nil {
			t.Fatal(err)
		}
		pods, nodes = append(pods, pod), append(nodes, node.Node)
	}
	for _, to := range slices.Concat(pods, nodes[1:], []*Host{fabric.Node}) {
		for _, at := range to.Addrs {
			ap := netip.AddrPortFrom(at, 80)
			s, err := to.Serve("tcp", ap, to.Name)
			if err != nil {
				t.Fatal(err)
			}
			for _, from := range slices.Concat(pods, nodes[:1], []*Host{fabric.Node}) {
				got, err := from.Ask("tcp", ap, time.Minute)
				if err != nil {
					t.Errorf("%s %v to %s: %v", from.Name, from.Addrs, ap, err)
				} else if from != to && got.Client.Addr() != from.Addr(at) {
					t.Errorf("%s to %s: seen as %s", from.Name, ap, got.Client)
				}
			}
			s.Close()
		}
	}
}

// A port that is used again soon may be the same connection to conntrack, with the endpoint that it had.
func TestPortsAreUsedInTurn(t *testing.T) {
	lab, err := New(netip.MustParseAddr("192.168.9.1"), netip.MustParseAddr("fd00:9::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	client, err := lab.AddHost("client", netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00:1::2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, at := range lab.Node.Addrs {
			to := netip.AddrPortFrom(at, 80)
			s, err := lab.Node.Serve(network, to, "server")
			if err != nil {
				t.Fatal(err)
			}
			last := uint16(0)
			for i := range 100 {
				got, err := client.Ask(network, to, AnswerTimeout)
				if err != nil {
					t.Fatal(err)
				}
				port := got.Client.Port()
				if i > 0 && port != last+1 {
					t.Fatalf("%s %s: port %d after %d", network, to, port, last)
				}
				last = port
			}
			s.Close()
		}
	}
}

func TestSpreadAddressIsAnsweredByAllHosts(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/ipv4/fib_multipath_hash_policy"); err != nil {
		t.Skipf("this kernel has no multipath routes: %v", err)
	}
	addr := netip.MustParseAddr
	fabric, err := New(addr("172.18.0.1"), addr("fd00:18::1"))
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	client, err := fabric.AddHost("client", addr("172.19.0.2"), addr("fd00:19::2"))
	if err != nil {
		t.Fatal(err)
	}
	vips := []netip.Addr{addr("203.0.113.1"), addr("2001:db8::1")}
	var nodes []*Host
	for i, name := range []string{"n1", "n2"} {
		node, err := fabric.AddNode(name, nil, addr([]string{"172.18.0.11", "172.18.0.12"}[i]), addr([]string{"fd00:18::11", "fd00:18::12"}[i]))
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		for _, vip := range vips {
			if err := node.Node.AddAddr("eth0", vip); err != nil {
				t.Fatal(err)
			}
			s, err := node.Node.Serve("tcp", netip.AddrPortFrom(vip, 80), name)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
		}
		nodes = append(nodes, node.Node)
	}
	for _, vip := range vips {
		for _, via := range [][]*Host{nodes, nodes[1:], nodes, nil, nil} {
			if err := fabric.Spread(vip, via...); err != nil {
				t.Fatal(err)
			}
			got, timeout := map[string]bool{}, AnswerTimeout
			if len(via) == 0 {
				timeout = 100 * time.Millisecond // there will be no answer
			}
			for range 64 {
				answer, err := client.Ask("tcp", netip.AddrPortFrom(vip, 80), timeout)
				if (err == nil) != (len(via) > 0) {
					t.Fatalf("%s by %d hosts: %v", vip, len(via), err)
				} else if err != nil {
					break
				}
				got[answer.Server] = true
			}
			if len(got) != len(via) {
				t.Errorf("%s by %d hosts: %v answered", vip, len(via), got)
			}
		}
	}
}
