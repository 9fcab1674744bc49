package ipvs

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestOnlyStrictARPKeepsTheNodeFromAnsweringForLoadBalancerIPs: in MetalLB's layer 2 mode only one node, the speaker,
// may answer ARP requests for a load balancer IP. In mode nftables the kernel never does.
func TestOnlyStrictARPKeepsTheNodeFromAnsweringForLoadBalancerIPs(t *testing.T) {
	balancer, gateway := netip.MustParseAddr("198.19.0.10"), netip.MustParseAddr("169.254.1.1")
	for name, c := range map[string]struct {
		open      func(d *env) (backend.Backend, error)
		announces bool // the node announces the address by ARP
	}{
		"mode ipvs": {func(d *env) (backend.Backend, error) { return Open(d.options()) }, true},
		"mode ipvs with strictARP": {func(d *env) (backend.Backend, error) {
			o := d.options()
			o.StrictARP = true
			return Open(o)
		}, false},
		"mode nftables": {func(d *env) (backend.Backend, error) {
			return nftables.Open(nftables.Options{Netns: d.Lab.Node.Fd(), Now: d.options().Now})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newEnv(t)
			b, err := c.open(d)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			next := frontend(t, balancer.String()+":80/TCP  LoadBalancer", "", []int{1, 1})
			if _, err := b.Apply(context.Background(), next, nil); err != nil {
				t.Fatal(err)
			}
			a := d.openARP(d.Client)
			a.request(balancer)
			a.request(gateway) // an address of the link: the node answers in any case, after any other answer
			answered := false
			for m := a.next(2); m.sender != gateway; m = a.next(2) {
				answered = answered || m.sender == balancer
			}
			if answered != c.announces {
				t.Errorf("the node answers for %s: %v, want %v", balancer, answered, c.announces)
			}

			// To reply to a client whose neighbour entry is missing, the node sends an ARP request from the load balancer IP.
			d.flushNeighbours(d.Client)
			if _, err := d.Client.Ask("tcp", netip.AddrPortFrom(balancer, 80), askTimeout); err != nil {
				t.Fatal(err)
			}
			m := a.next(1)
			for m.target != d.Client.Addr(balancer) {
				m = a.next(1)
			}
			if announced := m.sender == balancer; announced != c.announces {
				t.Errorf("the node sends ARP requests from %s", m.sender)
			}
		})
	}
}

// arpSocket is a socket that receives all ARP messages of a host's link.
type arpSocket struct {
	*env
	fd     int
	link   int
	source netip.Addr
}

type arpMessage struct {
	operation      uint16 // 1 is a request, 2 a reply
	sender, target netip.Addr
}

func (d *env) openARP(h *testnet.Host) *arpSocket {
	d.Helper()
	a := &arpSocket{env: d, source: h.Addr(netip.IPv4Unspecified())}
	err := h.Do(func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		a.link = i.Index
		a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Bind(a.fd, a.broadcast())
		}
		return err
	})
	if err == nil {
		d.Cleanup(func() { unix.Close(a.fd) })
		err = unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
	}
	if err != nil {
		d.Fatalf("ARP on %s: %v", h.Name, err)
	}
	return a
}

// broadcast returns the broadcast address of the link.
func (a *arpSocket) broadcast() *unix.SockaddrLinklayer {
	return &unix.SockaddrLinklayer{
		Protocol: binary.NativeEndian.Uint16([]byte{unix.ETH_P_ARP >> 8, unix.ETH_P_ARP & 0xff}), Ifindex: a.link,
		Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
}

// request sends a request for an IPv4 address.
func (a *arpSocket) request(who netip.Addr) {
	a.Helper()
	m := append([]byte{0, 1, 8, 0, 6, 4, 0, 1, 0x02, 0, 0, 0, 0, 2}, a.source.AsSlice()...)
	m = append(append(m, make([]byte, 6)...), who.AsSlice()...)
	if err := unix.Sendto(a.fd, m, 0, a.broadcast()); err != nil {
		a.Fatalf("send an ARP request for %s: %v", who, err)
	}
}

// next waits for the next message with this operation from another host.
func (a *arpSocket) next(operation uint16) arpMessage {
	a.Helper()
	for b := make([]byte, 256); ; {
		n, from, err := unix.Recvfrom(a.fd, b, 0)
		if err != nil {
			a.Fatalf("wait for ARP operation %d: %v", operation, err)
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING || n < 28 {
			continue
		}
		m := arpMessage{binary.BigEndian.Uint16(b[6:]), netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))}
		if m.operation == operation {
			return m
		}
	}
}

// flushNeighbours deletes the node's neighbour entries of a host.
func (d *env) flushNeighbours(h *testnet.Host) {
	d.Helper()
	err := d.Lab.Node.Do(func() error {
		nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer nl.Close()
		l, err := nl.LinkByName("v-" + h.Name)
		if err != nil {
			return err
		}
		list, err := nl.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for i := range list {
			if err := nl.NeighDel(&list[i]); err != nil {
				return fmt.Errorf("neighbour %s: %w", list[i].IP, err)
			}
		}
		return nil
	})
	if err != nil {
		d.Fatal(err)
	}
}
