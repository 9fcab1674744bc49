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

// addresses is what makes frontends' addresses the node's, so that packets to them come to IPVS.
type addresses interface {
	// list tells of all addresses of the node.
	list() (placed, error)
	// where tells whether an address that sluice has put nowhere is the node's now, and will stay. Of kube-proxy's it
	// knows what list has seen.
	where(a netip.Addr) (place, error)
	// add puts an address on the link; unix.EEXIST is that somebody else has it there.
	add(a netip.Addr) error
	// del takes it off. It is not asked whether it is sluice's: list tells.
	del(a netip.Addr) error
	// leave takes it off all other links.
	leave(a netip.Addr) error
	// ensure makes the link, when it has DefaultLink's name and is not there, and brings it up.
	ensure() (made bool, err error)
	// discard deletes DefaultLink when another link is in use and it has no address.
	discard() error
	close()
}

// placed are the addresses of the node.
type placed struct {
	bound  map[netip.Addr]bool // on the link, put there by sluice
	strays map[netip.Addr]bool // on other links, put there by sluice: the link was another
	own    map[netip.Addr]bool // the node's, whatever sluice does
}

// DefaultLink is the link that is made for the addresses of frontends.
const DefaultLink = "sluice-ipvs0"

// kubeProxyLink is where kube-proxy has the same addresses, until it is cleaned away.
const kubeProxyLink = "kube-ipvs0"

// link is a real link.
type link struct {
	name  string
	nl    *netlink.Handle
	route route
	index int // 0: not there

	// What list has seen.
	ours    []address           // on all links
	strays  map[netip.Addr]bool // as in placed
	passing map[netip.Addr]bool // on kube-proxy's link: the node's for now, and not its own
	shared  map[int]bool        // links that have addresses of somebody else's
}

func (l *link) close() {
	l.nl.Close()
	l.route.close()
}

// lookUp gives a link's index, 0 when it is not there, and whether it is one that sluice makes.
func (l *link) lookUp(name string) (index int, made bool, err error) {
	found, err := l.nl.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("ipvs: find link %s: %w", name, err)
	}
	return found.Attrs().Index, found.Type() == "dummy" && name == DefaultLink, nil
}

func (l *link) find() (err error) {
	l.index, _, err = l.lookUp(l.name)
	return err
}

func errNoLink(name string) error {
	return fmt.Errorf("ipvs: there is no link %s (ipvs.interface); only %s is made when it is missing", name, DefaultLink)
}

func (l *link) ensure() (made bool, err error) {
	if err := l.find(); err != nil {
		return false, err
	}
	if l.index == 0 {
		if l.name != DefaultLink {
			return false, errNoLink(l.name)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = l.name
		err := l.nl.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("%w: the kernel has no dummy links (CONFIG_DUMMY, modprobe dummy); name another link as ipvs.interface", err)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("ipvs: add link %s: %w", l.name, err)
		}
		made = true
		if err := l.find(); err != nil {
			return made, err
		}
	}
	found, err := l.nl.LinkByIndex(l.index)
	if err == nil && found.Attrs().Flags&net.FlagUp == 0 {
		err = l.nl.LinkSetUp(found)
	}
	if err != nil {
		return made, fmt.Errorf("ipvs: bring up link %s: %w", l.name, err)
	}
	return made, nil
}

func (l *link) list() (placed, error) {
	p := placed{map[netip.Addr]bool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
	if err := l.find(); err != nil {
		return p, err
	}
	l.ours, l.strays, l.passing, l.shared = nil, p.strays, map[netip.Addr]bool{}, map[int]bool{}
	theirs := -1
	if found, err := l.nl.LinkByName(kubeProxyLink); err == nil && l.name != kubeProxyLink {
		theirs = found.Attrs().Index
	}
	all, err := l.route.all()
	if err != nil {
		return p, fmt.Errorf("ipvs: list addresses: %w", err)
	}
	for _, a := range all {
		switch {
		case a.ours():
			l.ours = append(l.ours, a)
			if a.link == l.index {
				p.bound[a.Addr] = true
			} else {
				p.strays[a.Addr] = true
			}
			continue
		case a.link == theirs && !a.IsLinkLocalUnicast():
			l.passing[a.Addr] = true
		default:
			p.own[a.Addr] = true
		}
		if !a.IsLinkLocalUnicast() { // which the kernel gives to each link
			l.shared[a.link] = true
		}
	}
	slices.SortFunc(l.ours, func(a, b address) int { return cmp.Or(cmp.Compare(a.link, b.link), a.Compare(b.Addr)) })
	return p, nil
}

func (l *link) where(a netip.Addr) (place, error) {
	switch {
	case l.passing[a]:
		return passing, nil
	case l.strays[a]:
		return away, nil
	}
	routes, err := l.nl.RouteGet(a.AsSlice())
	if err != nil {
		return away, nil // no way there
	}
	for _, r := range routes {
		if r.Type == unix.RTN_LOCAL {
			return onNode, nil
		}
	}
	return away, nil
}

func (l *link) add(a netip.Addr) error {
	err := l.route.add(a, l.index)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if p, lerr := l.list(); lerr != nil || p.bound[a] {
		return lerr
	}
	return err
}

func (l *link) del(a netip.Addr) error { return l.route.del(a, l.index) }

func (l *link) leave(a netip.Addr) error {
	for _, o := range l.ours {
		if o.Addr == a && o.link != l.index {
			if err := l.route.del(a, o.link); err != nil {
				return err
			}
		}
	}
	delete(l.strays, a)
	return nil
}

func (l *link) discard() error {
	if l.name == DefaultLink {
		return nil
	}
	index, made, err := l.lookUp(DefaultLink)
	if err != nil || !made {
		return err
	}
	if _, err := l.list(); err != nil {
		return err
	}
	if l.shared[index] || slices.ContainsFunc(l.ours, func(a address) bool { return a.link == index }) {
		return nil
	}
	return l.delete(index)
}

// delete deletes a link, with its addresses.
func (l *link) delete(index int) error {
	err := l.nl.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", DefaultLink, hint(err))
	}
	return nil
}

// nameOf is a link's name, for people.
func (l *link) nameOf(index int) string {
	found, err := l.nl.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("%d", index)
	}
	return found.Attrs().Name
}
