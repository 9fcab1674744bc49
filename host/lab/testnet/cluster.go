package testnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddNode returns a lab whose node is a host of l, for clusters of several nodes. The node's default route leads to l's
// node, which has routes to the node's addresses and to its Pods' ranges. Both share a World. Close it before l.
func (l *Lab) AddNode(name string, pods []netip.Prefix, addrs ...netip.Addr) (*Lab, error) {
	h, err := newHost(name)
	if err != nil {
		return nil, fmt.Errorf("testnet: node %s: %w", name, err)
	}
	return l.addNode(h, pods, addrs)
}

// AddMachine is AddNode with the machine's initial network namespace as the node, where sysctls of the whole kernel can be
// changed. It works on test kernels only, whose machine nothing else uses.
func (l *Lab) AddMachine(name string, pods []netip.Prefix, addrs ...netip.Addr) (*Lab, error) {
	if os.Getenv("SLUICE_VM") == "" {
		return nil, fmt.Errorf("testnet: node %s: this is not a test kernel (host/lab/vm)", name)
	}
	ns, err := os.Open("/proc/1/ns/net")
	if err != nil {
		return nil, fmt.Errorf("testnet: node %s: %w", name, err)
	}
	h, err := hostIn(name, ns)
	if err != nil {
		return nil, fmt.Errorf("testnet: node %s: %w", name, err)
	}
	return l.addNode(h, pods, addrs)
}

func (l *Lab) addNode(h *Host, pods []netip.Prefix, addrs []netip.Addr) (*Lab, error) {
	name, n := h.Name, &Lab{Node: h, World: l.World}
	err := errors.Join(h.forward(), l.connect(h, addrs))
	if err == nil {
		err = h.defaultRoutes(uplink4, uplink6) // the gateways' own addresses are the node's towards its hosts
	}
	for _, p := range pods {
		if err == nil {
			err = l.Route(p, h)
		}
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("testnet: node %s: %w", name, err)
	}
	return n, nil
}

// Detach removes the link to a host or a node, as when its machine is powered off. Its namespace ends with its last process and,
// of a node, with Close.
func (l *Lab) Detach(h *Host) error {
	link, err := l.Node.nl.LinkByName("v-" + h.Name)
	if err == nil {
		err = l.Node.nl.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("testnet: detach %s: %w", h.Name, err)
	}
	return nil
}

// Route leads from the node to whatever lies behind a host or node: Pods, or addresses of load balancers. One that is
// there is replaced.
func (l *Lab) Route(to netip.Prefix, via *Host) error {
	link, err := l.Node.nl.LinkByName("v-" + via.Name)
	if err != nil {
		return fmt.Errorf("testnet: route %s via %s: %w", to, via.Name, err)
	}
	gw := via.Addr(to.Addr())
	if !gw.IsValid() {
		return fmt.Errorf("testnet: route %s via %s: it has no address of this family", to, via.Name)
	}
	err = l.Node.nl.RouteReplace(&netlink.Route{
		LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		Dst: &net.IPNet{IP: to.Masked().Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
	})
	if err != nil {
		return fmt.Errorf("testnet: route %s via %s: %w", to, via.Name, err)
	}
	return nil
}

// Spread leads from the node to an address behind hosts or nodes, each connection to one of them, by its addresses and ports.
// Without hosts, it leads nowhere. It does not change where open connections go while the hosts are the same.
func (l *Lab) Spread(to netip.Addr, via ...*Host) error {
	r := &netlink.Route{Dst: hostNet(to)}
	for _, h := range via {
		link, err := l.Node.nl.LinkByName("v-" + h.Name)
		if err != nil {
			return fmt.Errorf("testnet: spread %s to %s: %w", to, h.Name, err)
		}
		gw := h.Addr(to)
		if !gw.IsValid() {
			return fmt.Errorf("testnet: spread %s to %s: it has no address of this family", to, h.Name)
		}
		r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: gw.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
	}
	var err error
	if len(via) == 0 {
		if err = l.Node.nl.RouteDel(r); errors.Is(err, unix.ESRCH) {
			err = nil
		}
	} else {
		err = errors.Join(l.Node.hashPorts(), l.Node.nl.RouteReplace(r))
	}
	if err != nil {
		return fmt.Errorf("testnet: spread %s: %w", to, err)
	}
	return nil
}

// hashPorts makes routes with several next hops choose by ports too.
func (h *Host) hashPorts() error {
	return h.Do(func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/fib_multipath_hash_policy", []byte("1"), 0))
	})
}
