package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Lab is a node and the hosts around it. The node forwards between its hosts.
type Lab struct {
	Node *Host
	// World is beyond the node's default route. It has no addresses and servers but those that a test adds.
	World *Host
	hosts []*Host
}

// Host is a network namespace: the node, a Pod, or a client.
type Host struct {
	Name  string
	Addrs []netip.Addr // its addresses, in the order given

	ns *os.File
	nl *netlink.Handle

	tcpPorts, udpPorts, sctpPorts atomic.Uint32 // number of ports used so far
}

// The node's addresses towards its hosts, the same on every veth: a host's default gateways.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
	uplink4  = netip.MustParseAddr("169.254.1.2")
	uplink6  = netip.MustParseAddr("fe80::2")
	nodeMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 1}
	hostMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 2}
)

// New creates a lab whose node has the given addresses, on its loopback link as a node with routed addresses has them.
// The caller closes it.
func New(node ...netip.Addr) (*Lab, error) {
	if !Inside() {
		return nil, errors.New("testnet: the process is not in namespaces of its own: call testnet.Main or testnet.Enter first")
	}
	h, err := newHost("node")
	if err != nil {
		return nil, fmt.Errorf("testnet: %w", err)
	}
	l := &Lab{Node: h}
	err = h.forward()
	for _, a := range node {
		if err == nil {
			err = h.AddAddr("lo", a)
		}
	}
	if err == nil {
		err = l.uplink()
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("testnet: set up the node: %w", err)
	}
	return l, nil
}

// forward enables IP forwarding on the host.
func (h *Host) forward() error {
	return h.Do(func() error {
		for path, v := range map[string]string{
			"/proc/sys/net/ipv4/ip_forward":          "1",
			"/proc/sys/net/ipv4/conf/all/rp_filter":  "0",
			"/proc/sys/net/ipv6/conf/all/forwarding": "1",
			// No rate limit on ICMP errors; the default is six a second for each host.
			"/proc/sys/net/ipv4/icmp_ratemask": "0",
			"/proc/sys/net/ipv6/icmp/ratemask": "255",
		} {
			if err := os.WriteFile(path, []byte(v), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// uplink adds a default route to the node. Without one the kernel has no route for a packet to a ClusterIP and drops it.
func (l *Lab) uplink() error {
	h, err := newHost("uplink")
	if err != nil {
		return err
	}
	l.World, l.hosts = h, append(l.hosts, h)
	if err := l.connect(h, nil); err != nil {
		return err
	}
	if err := h.defaultRoutes(gateway4, gateway6); err != nil {
		return err
	}
	for _, via := range []netip.Addr{uplink4, uplink6} {
		if err := l.Node.defaultRoute("v-uplink", via, hostMAC); err != nil {
			return err
		}
	}
	return nil
}

// AddHost creates a host with these addresses on a veth pair to the node, with one route per host and no bridge, as
// Kubernetes' ptp CNI plugin does. The node's link is "v-" and the name, at most 15 bytes together.
func (l *Lab) AddHost(name string, addrs ...netip.Addr) (*Host, error) {
	h, err := newHost(name)
	if err != nil {
		return nil, fmt.Errorf("testnet: host %s: %w", name, err)
	}
	l.hosts = append(l.hosts, h)
	if err := errors.Join(l.connect(h, addrs), h.defaultRoutes(gateway4, gateway6)); err != nil {
		return nil, fmt.Errorf("testnet: host %s: %w", name, err)
	}
	return h, nil
}

// Close removes all hosts.
func (l *Lab) Close() {
	for _, h := range append(l.hosts, l.Node) {
		h.close()
	}
}

func (h *Host) close() {
	h.nl.Close()
	h.ns.Close()
}

func newHost(name string) (*Host, error) {
	ns, err := newNetns()
	if err != nil {
		return nil, err
	}
	return hostIn(name, ns)
}

// hostIn returns a host for a namespace. It closes the namespace on error.
func hostIn(name string, ns *os.File) (*Host, error) {
	h := &Host{Name: name, ns: ns}
	err := h.Do(func() (err error) {
		h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = h.up("lo")
	}
	if err != nil {
		ns.Close()
		return nil, err
	}
	return h, nil
}

func (h *Host) up(link string) error {
	l, err := h.nl.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	if err := h.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set link %s up: %w", link, err)
	}
	return nil
}

// AddAddr adds an address to a link of the host and waits until it can be used.
func (h *Host) AddAddr(link string, a netip.Addr) error {
	l, err := h.nl.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	addr := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := h.nl.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("add %s to %s: %w", a, link, err)
	}
	if !a.IsLinkLocalUnicast() {
		h.Addrs = append(h.Addrs, a)
	}
	return h.awaitLocal(a)
}

// awaitLocal waits until the kernel accepts packets to an address. The local route of an IPv6 address appears some time
// after the address, when sockets can already be bound to it.
func (h *Host) awaitLocal(a netip.Addr) error {
	const timeout = AnswerTimeout // usually some milliseconds
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		routes, err := h.nl.RouteGet(a.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("add %s: no route to it after %s", a, timeout)
}

// connect creates the veth pair to a host and the node's routes to its addresses.
func (l *Lab) connect(h *Host, addrs []netip.Addr) error {
	end := "v-" + h.Name
	if err := checkLinkName(end); err != nil {
		return err
	}
	veth := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: end, HardwareAddr: nodeMAC},
		PeerName:         "eth0",
		PeerHardwareAddr: hostMAC,
		PeerNamespace:    netlink.NsFd(int(h.ns.Fd())),
	}
	if err := l.Node.nl.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth pair %s: %w", end, err)
	}
	if err := errors.Join(l.configure(end), h.up("eth0")); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := h.AddAddr("eth0", a); err != nil {
			return err
		}
		if err := l.Node.route(end, a, l.Node.Addr(a), hostMAC); err != nil {
			return err
		}
	}
	return nil
}

// configure sets up the node's end of a link to a host.
func (l *Lab) configure(end string) error {
	return errors.Join(l.Node.up(end), l.Node.addLinkAddr(end, gateway4), l.Node.addLinkAddr(end, gateway6))
}

func checkLinkName(name string) error {
	if len(name) > 15 {
		return fmt.Errorf("link name %s: longer than 15 bytes", name)
	}
	return nil
}

func (h *Host) addLinkAddr(link string, a netip.Addr) error {
	l, err := h.nl.LinkByName(link)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: hostNet(a), Scope: unix.RT_SCOPE_LINK}
	if a.Is6() {
		addr.IPNet.Mask = net.CIDRMask(64, 128)
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := h.nl.AddrAdd(l, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to %s: %w", a, link, err)
	}
	return nil
}

// route adds a route to one address, with a permanent neighbour entry so that no first packet waits. from is the source
// of connections from here; if it is invalid, the link's own address is.
func (h *Host) route(link string, to, from netip.Addr, mac net.HardwareAddr) error {
	l, err := h.nl.LinkByName(link)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: hostNet(to), Scope: unix.RT_SCOPE_LINK}
	if from.IsValid() {
		r.Src = from.AsSlice()
	}
	if err := h.nl.RouteAdd(r); err != nil {
		return fmt.Errorf("route %s by %s: %w", to, link, err)
	}
	return h.neighbour(l, to, mac)
}

func (h *Host) neighbour(l netlink.Link, a netip.Addr, mac net.HardwareAddr) error {
	err := h.nl.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, IP: a.AsSlice(), HardwareAddr: mac, State: unix.NUD_PERMANENT,
	})
	if err != nil {
		return fmt.Errorf("neighbour %s: %w", a, err)
	}
	return nil
}

// defaultRoutes adds the routes from a host to its node.
func (h *Host) defaultRoutes(via4, via6 netip.Addr) error {
	return errors.Join(h.defaultRoute("eth0", via4, nodeMAC), h.defaultRoute("eth0", via6, nodeMAC))
}

func (h *Host) defaultRoute(link string, via netip.Addr, mac net.HardwareAddr) error {
	l, err := h.nl.LinkByName(link)
	if err != nil {
		return err
	}
	if err := h.neighbour(l, via, mac); err != nil {
		return err
	}
	dst := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if via.Is6() {
		dst = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: via.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
	if err := h.nl.RouteAdd(r); err != nil {
		return fmt.Errorf("default route via %s: %w", via, err)
	}
	return nil
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
