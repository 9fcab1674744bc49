package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// localTimeout bounds how long an added address may take to be local.
const localTimeout = time.Second

// kernelLink implements linkAPI by netlink.
type kernelLink struct {
	name   string
	handle *netlink.Handle
	addrs  addrSocket
	index  int // 0 if it does not exist

	// What the last listAddrs found.
	owned          []ifAddr            // of sluice, on all links
	otherLinks     map[netip.Addr]bool // as in nodeAddrs
	kubeProxyOwned map[netip.Addr]bool // on kube-proxy's link, and thus not permanent
	usedByOthers   map[int]bool        // links that have addresses of other programs
}

func (l *kernelLink) close() {
	l.handle.Close()
	l.addrs.close()
}

// findLink returns a link's index, 0 if it does not exist, and whether it is one that sluice creates.
func (l *kernelLink) findLink(name string) (index int, ours bool, err error) {
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
			err = fmt.Errorf("%w: the kernel has no dummy links (CONFIG_DUMMY, modprobe dummy); set ipvs.interface to another link", err)
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
		return made, fmt.Errorf("ipvs: set link %s up: %w", l.name, err)
	}
	return made, nil
}

func (l *kernelLink) listAddrs() (nodeAddrs, error) {
	p := nodeAddrs{map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
	if err := l.refresh(); err != nil {
		return p, err
	}
	l.owned, l.otherLinks, l.kubeProxyOwned, l.usedByOthers = nil, p.otherLinks, map[netip.Addr]bool{}, map[int]bool{}
	kubeProxy := -1
	if found, err := l.handle.LinkByName(kubeProxyLink); err == nil && l.name != kubeProxyLink {
		kubeProxy = found.Attrs().Index
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
		case a.link == kubeProxy && !a.IsLinkLocalUnicast():
			l.kubeProxyOwned[a.Addr] = true
		default:
			p.nodeLocal[a.Addr] = true
		}
		if !a.IsLinkLocalUnicast() { // the kernel adds one to each link
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
		return notOnNode, nil // unreachable
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

func (l *kernelLink) awaitLocal(a netip.Addr) error {
	for waited, wait := time.Duration(0), 50*time.Microsecond; ; waited, wait = waited+wait, min(2*wait, 10*time.Millisecond) {
		// Only with the link: another one may have the same address, and may be about to lose it.
		routes, err := l.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{OifIndex: l.index})
		switch {
		case err == nil && slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL }):
			return nil
		case waited >= localTimeout:
			return fmt.Errorf("address %s of link %s has no local route %s after it was added, so packets to it leave the node", a, l.name, localTimeout)
		}
		time.Sleep(wait)
	}
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
	index, ours, err := l.findLink(DefaultLink)
	if err != nil || !ours {
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

// deleteLink deletes DefaultLink with its addresses. A link that is already gone is not an error.
func (l *kernelLink) deleteLink(index int) error {
	err := l.handle.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", DefaultLink, withHint(err))
	}
	return nil
}

// linkName returns a link's name for messages.
func (l *kernelLink) linkName(index int) string {
	found, err := l.handle.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("%d", index)
	}
	return found.Attrs().Name
}
