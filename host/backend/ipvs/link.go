package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkAPI is what makes frontends' addresses the node's, so that packets to them come to IPVS.
type linkAPI interface {
	// listAddrs tells of all addresses of the node.
	listAddrs() (nodeAddrs, error)
	// locate tells whether an address that sluice has put nowhere is the node's now, and will stay. Of kube-proxy's it
	// knows what list has seen.
	locate(a netip.Addr) (addrLocation, error)
	// addAddr puts an address on the link; unix.EEXIST is that somebody else has it there.
	addAddr(a netip.Addr) error
	// delAddr takes it off. It is not asked whether it is sluice's: list tells.
	delAddr(a netip.Addr) error
	// delFromOtherLinks takes it off all other links.
	delFromOtherLinks(a netip.Addr) error
	// ensureLink makes the link, when it has DefaultLink's name and is not there, and brings it up.
	ensureLink() (made bool, err error)
	// deleteUnusedDefault deletes DefaultLink when another link is in use and it has no address.
	deleteUnusedDefault() error
	close()
}

// nodeAddrs are the addresses of the node.
type nodeAddrs struct {
	bound      map[netip.Addr]bool // on the link, put there by sluice
	otherLinks map[netip.Addr]bool // on other links, put there by sluice: the link was another
	nodeLocal  map[netip.Addr]bool // the node's, whatever sluice does
}

// DefaultLink is the link that is made for the addresses of frontends.
const DefaultLink = "sluice-ipvs0"

// kubeProxyLink is where kube-proxy has the same addresses, until it is cleaned away.
const kubeProxyLink = "kube-ipvs0"

// kernelLink is a real link.
type kernelLink struct {
	name   string
	handle *netlink.Handle
	addrs  addrSocket
	index  int // 0: not there

	// What list has seen.
	owned          []ifAddr            // on all links
	otherLinks     map[netip.Addr]bool // as in placed
	kubeProxyOwned map[netip.Addr]bool // on kube-proxy's link: the node's for now, and not its own
	usedByOthers   map[int]bool        // links that have addresses of somebody else's
}

func (l *kernelLink) close() {
	l.handle.Close()
	l.addrs.close()
}

// findLink gives a link's index, 0 when it is not there, and whether it is one that sluice makes.
func (l *kernelLink) findLink(name string) (index int, made bool, err error) {
	found, err := l.handle.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("ipvs: find link %s: %w", name, err)
	}
	return found.Attrs().Index, found.Type() == "dummy" && name == DefaultLink, nil
}

func (l *kernelLink) refresh() (err error) {
	l.index, _, err = l.findLink(l.name)
	return err
}

func errNoLink(name string) error {
	return fmt.Errorf("ipvs: there is no link %s (ipvs.interface); only %s is made when it is missing", name, DefaultLink)
}

func (l *kernelLink) ensureLink() (made bool, err error) {
	if err := l.refresh(); err != nil {
		return false, err
	}
	if l.index == 0 {
		if l.name != DefaultLink {
			return false, errNoLink(l.name)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = l.name
		err := l.handle.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: the kernel has no dummy links (CONFIG_DUMMY, modprobe dummy); name another link as ipvs.interface", err)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("ipvs: add link %s: %w", l.name, err)
		}
		made = true
		if err := l.refresh(); err != nil {
			return made, err
		}
	}
	found, err := l.handle.LinkByIndex(l.index)
	if err == nil && found.Attrs().Flags&net.FlagUp == 0 {
		err = l.handle.LinkSetUp(found)
	}
	if err != nil {
		return made, fmt.Errorf("ipvs: bring up link %s: %w", l.name, err)
	}
	return made, nil
}

func (l *kernelLink) listAddrs() (nodeAddrs, error) {
	p := nodeAddrs{map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
	if err := l.refresh(); err != nil {
		return p, err
	}
	l.owned, l.otherLinks, l.kubeProxyOwned, l.usedByOthers = nil, p.otherLinks, map[netip.Addr]bool{}, map[int]bool{}
	theirs := -1
	if found, err := l.handle.LinkByName(kubeProxyLink); err == nil && l.name != kubeProxyLink {
		theirs = found.Attrs().Index
	}
	all, err := l.addrs.list()
	if err != nil {
		return p, fmt.Errorf("ipvs: list addresses: %w", err)
	}
	for _, a := range all {
		switch {
		case a.owned():
			l.owned = append(l.owned, a)
			if a.link == l.index {
				p.bound[a.Addr] = true
			} else {
				p.otherLinks[a.Addr] = true
			}
			continue
		case a.link == theirs && !a.IsLinkLocalUnicast():
			l.kubeProxyOwned[a.Addr] = true
		default:
			p.nodeLocal[a.Addr] = true
		}
		if !a.IsLinkLocalUnicast() { // which the kernel gives to each link
			l.usedByOthers[a.link] = true
		}
	}
	slices.SortFunc(l.owned, func(a, b ifAddr) int { return cmp.Or(cmp.Compare(a.link, b.link), a.Compare(b.Addr)) })
	return p, nil
}

func (l *kernelLink) locate(a netip.Addr) (addrLocation, error) {
	switch {
	case l.kubeProxyOwned[a]:
		return onKubeProxyLink, nil
	case l.otherLinks[a]:
		return notOnNode, nil
	}
	routes, err := l.handle.RouteGet(a.AsSlice())
	if err != nil {
		return notOnNode, nil // no way there
	}
	for _, r := range routes {
		if r.Type == unix.RTN_LOCAL {
			return onNode, nil
		}
	}
	return notOnNode, nil
}

func (l *kernelLink) addAddr(a netip.Addr) error {
	err := l.addrs.add(a, l.index)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if p, lerr := l.listAddrs(); lerr != nil || p.bound[a] {
		return lerr
	}
	return err
}

func (l *kernelLink) delAddr(a netip.Addr) error { return l.addrs.del(a, l.index) }

func (l *kernelLink) delFromOtherLinks(a netip.Addr) error {
	for _, o := range l.owned {
		if o.Addr == a && o.link != l.index {
			if err := l.addrs.del(a, o.link); err != nil {
				return err
			}
		}
	}
	delete(l.otherLinks, a)
	return nil
}

func (l *kernelLink) deleteUnusedDefault() error {
	if l.name == DefaultLink {
		return nil
	}
	index, made, err := l.findLink(DefaultLink)
	if err != nil || !made {
		return err
	}
	if _, err := l.listAddrs(); err != nil {
		return err
	}
	if l.usedByOthers[index] || slices.ContainsFunc(l.owned, func(a ifAddr) bool { return a.link == index }) {
		return nil
	}
	return l.deleteLink(index)
}

// deleteLink deletes a link, with its addresses.
func (l *kernelLink) deleteLink(index int) error {
	err := l.handle.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", DefaultLink, withHint(err))
	}
	return nil
}

// linkName is a link's name, for people.
func (l *kernelLink) linkName(index int) string {
	found, err := l.handle.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("%d", index)
	}
	return found.Attrs().Name
}
