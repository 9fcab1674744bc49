package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// AddGuest is AddNode for a node with a kernel of its own, a guest of host/lab/vm: it makes a tap device of the lab's node for
// the guest's link, and returns the device's name. In the guest, Join configures the link. The host has no namespace here: it
// is for Route, Addr and Detach.
func (l *Lab) AddGuest(name string, addrs ...netip.Addr) (*Host, string, error) {
	h, tap := &Host{Name: name, Addrs: addrs}, "v-"+name
	err := l.addTap(tap)
	if err == nil {
		err = l.configure(tap)
	}
	for _, a := range addrs {
		if err == nil {
			err = l.Node.route(tap, a, l.Node.Addr(a), hostMAC)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("testnet: guest %s: %w", name, err)
	}
	return h, tap, nil
}

func (l *Lab) addTap(name string) error {
	if err := checkLinkName(name); err != nil {
		return err
	}
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
	}
	// The device appears in the namespace of the thread that asks for it.
	if err := l.Node.Do(func() error { return l.Node.nl.LinkAdd(tap) }); err != nil {
		return fmt.Errorf("add tap device %s: %w", name, err)
	}
	for _, fd := range tap.Fds {
		_ = fd.Close()
	}
	link, err := l.Node.nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := l.Node.nl.LinkSetHardwareAddr(link, nodeMAC); err != nil {
		return fmt.Errorf("set the address of link %s: %w", name, err)
	}
	return nil
}

// Join configures the network of a guest that AddGuest has made room for. Its link becomes eth0.
func Join(link string, addrs ...netip.Addr) error {
	if os.Getenv("SLUICE_VM") == "" {
		return errors.New("testnet: join: this is not a test kernel (host/lab/vm)")
	}
	ns, err := os.Open("/proc/1/ns/net")
	if err != nil {
		return fmt.Errorf("testnet: join: %w", err)
	}
	h, err := hostIn("guest", ns)
	if err != nil {
		return fmt.Errorf("testnet: join: %w", err)
	}
	defer h.close()
	found, err := h.nl.LinkByName(link)
	if err == nil {
		err = errors.Join(h.nl.LinkSetName(found, "eth0"), h.nl.LinkSetHardwareAddr(found, hostMAC), h.up("eth0"), h.forward())
	}
	for _, a := range addrs {
		if err == nil {
			err = h.AddAddr("eth0", a)
		}
	}
	if err == nil {
		err = h.defaultRoutes(uplink4, uplink6)
	}
	if err != nil {
		return fmt.Errorf("testnet: join: %w", err)
	}
	return nil
}
