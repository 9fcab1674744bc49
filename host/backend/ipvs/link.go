package ipvs

import (
	"fmt"
	"net/netip"
)

// kubeProxyLink is the link on which kube-proxy has the same addresses until it is cleaned up.
const kubeProxyLink = "kube-ipvs0"

// linkAPI manages the VIPs on links. Packets to an address reach IPVS only if it is local to the node.
type linkAPI interface {
	// listAddrs returns all addresses of the node.
	listAddrs() (nodeAddrs, error)
	// locate reports whether an address that is not on a link by sluice is local to the node. For kube-proxy's link it
	// relies on the last listAddrs.
	locate(a netip.Addr) (addrLocation, error)
	// addAddr adds an address to the link. unix.EEXIST means that another program has added it.
	addAddr(a netip.Addr) error
	// awaitLocal waits until packets to an address that addAddr has added stay on the node, a second at most. That of IPv6 takes
	// effect some time after the kernel has acknowledged it: its local route is added by a work queue (Linux 6.1 to 6.18,
	// addrconf_dad_start).
	awaitLocal(a netip.Addr) error
	// delAddr deletes an address from the link, without checking that sluice owns it: see listAddrs.
	delAddr(a netip.Addr) error
	// delFromOtherLinks deletes sluice's address from all other links.
	delFromOtherLinks(a netip.Addr) error
	// ensureLink creates the link if it is DefaultLink and missing, and sets it up.
	ensureLink() (made bool, err error)
	// deleteUnusedDefault deletes DefaultLink if another link is in use and DefaultLink has no address.
	deleteUnusedDefault() error
	close()
}

// nodeAddrs are the addresses of the node.
type nodeAddrs struct {
	bound      map[netip.Addr]bool // added to the link by sluice
	otherLinks map[netip.Addr]bool // added to other links by sluice, under an earlier ipvs.interface
	nodeLocal  map[netip.Addr]bool // local to the node independently of sluice
}

// addrLocation is where an address is that sluice has not added to the link.
type addrLocation uint8

const (
	notOnNode       addrLocation = iota
	onNode                       // local to the node, permanently
	onKubeProxyLink              // local to the node until kube-proxy is cleaned up
)

// BoundVIPs returns the addresses that sluice has added to the named link or, under an earlier configuration, to
// another one, and that are not local to the node otherwise. An empty name is DefaultLink.
func BoundVIPs(link string) (map[netip.Addr]bool, error) {
	if link == "" {
		link = DefaultLink
	}
	l, err := openLink(0, link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	p, err := l.listAddrs()
	return p.vips(), err
}

// vips returns the addresses of sluice that are not local to the node otherwise.
func (p nodeAddrs) vips() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, set := range []map[netip.Addr]bool{p.bound, p.otherLinks} {
		for a := range set {
			if !p.nodeLocal[a] {
				out[a] = true
			}
		}
	}
	return out
}

func errNoLink(name string) error {
	return fmt.Errorf("ipvs: no link %s (ipvs.interface): only %s is created if missing", name, DefaultLink)
}
