package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// lookupLocal finds out whether the VIP of a new frontend is local to the node already.
func (b *Backend) lookupLocal(u *frontendUpdate) error {
	a := u.key.Addr
	if u.next == nil || u.key.IsNodePort() || b.state.bound[a] || b.state.nodeLocal[a] {
		return nil
	}
	at, err := b.links.locate(a)
	if err != nil {
		return fmt.Errorf("look up the route to %s: %w", a, err)
	}
	switch at {
	case onNode:
		b.state.nodeLocal[a] = true
	case onKubeProxyLink:
		b.state.kubeProxyOwned[a] = true
	}
	return nil
}

// bindFrontend makes the VIP of a frontend local to the node.
func (b *Backend) bindFrontend(u *frontendUpdate) error {
	a := u.key.Addr
	if u.next == nil || u.key.IsNodePort() || b.state.bound[a] || b.state.nodeLocal[a] {
		return nil
	}
	return b.bindVIP(a)
}

// bindVIP adds an address to the link. One that another program has added meanwhile counts as the node's own.
func (b *Backend) bindVIP(a netip.Addr) error {
	err := b.changeAddr("add address", a, b.links.addAddr)
	switch {
	case err == nil:
		b.state.bound[a] = true
		if a.Is6() {
			b.notYetLocal[a] = true
		}
	case errors.Is(err, unix.EEXIST):
		b.state.nodeLocal[a], b.state.localOnLinks[a] = true, true
	default:
		return err
	}
	return nil
}

// awaitFrontend waits until packets to the VIP of a frontend stay on the node, if bindFrontend has just added it. Otherwise the
// first packets of new connections leave by another route, and conntrack remembers these connections without IPVS.
func (b *Backend) awaitFrontend(u *frontendUpdate) error { return b.awaitLocal(u.key.Addr) }

func (b *Backend) awaitLocal(a netip.Addr) error {
	if !b.notYetLocal[a] {
		return nil
	}
	if err := b.links.awaitLocal(a); err != nil {
		return err
	}
	delete(b.notYetLocal, a)
	return nil
}

// migrateLink moves addresses from the links of an earlier ipvs.interface to this one: first added here, then deleted
// there. An address that cannot be added here stays where it is.
func (b *Backend) migrateLink() error {
	addrs := slices.SortedFunc(maps.Keys(b.state.otherLinks), netip.Addr.Compare)
	failed := map[netip.Addr]error{}
	for _, a := range addrs {
		if needed := b.state.frontendsAt[a] > 0 || b.state.usedByServer(a); needed && !b.state.bound[a] && !b.state.nodeLocal[a] {
			if failed[a] = b.bindVIP(a); failed[a] == nil {
				b.idleSince[a] = b.o.Now()
			}
		}
	}
	for _, a := range addrs { // when all are added: each is local some time later
		if err := cmp.Or(failed[a], b.awaitLocal(a)); err != nil {
			b.log.Warn("cannot move an address from another link", "address", a, "link", b.o.Link, "err", err)
			continue
		}
		b.stats.Messages++
		b.stats.Elements++
		if err := b.links.delFromOtherLinks(a); err != nil {
			return fmt.Errorf("ipvs: delete address %s from links other than %s: %w", a, b.o.Link, withHint(err))
		}
		delete(b.state.otherLinks, a)
	}
	return b.links.deleteUnusedDefault()
}

// unbindDelay is how long an unused address stays. By then the conntrack entries of its UDP flows are deleted, whose
// packets would leave by the default route.
const unbindDelay = time.Second

// markIdle notes that an address may be unused from now on.
func (b *Backend) markIdle(a netip.Addr) {
	if _, ok := b.idleSince[a]; !ok && b.state.bound[a] {
		b.idleSince[a] = b.o.Now()
	}
}

func (b *Backend) markAllIdle() {
	for a := range b.state.bound {
		b.markIdle(a)
	}
}

// unbindIdle deletes addresses that have had neither frontends nor virtual servers for unbindDelay, and returns when to
// call it again; 0 is never. The addresses stay guarded until releaseGuards.
func (b *Backend) unbindIdle() (again time.Duration, err error) {
	now := b.o.Now()
	var bound map[netip.Addr]bool // as of now: another program may have replaced an address
	for _, a := range slices.SortedFunc(maps.Keys(b.idleSince), netip.Addr.Compare) {
		local := b.state.nodeLocal[a] // became the node's own meanwhile
		if !b.state.bound[a] || !local && (b.state.frontendsAt[a] > 0 || b.state.usedByServer(a)) {
			delete(b.idleSince, a)
			continue
		}
		if wait := b.idleSince[a].Add(unbindDelay).Sub(now); wait > 0 && !local {
			again = max(again, wait)
			continue
		}
		if bound == nil {
			p, err := b.links.listAddrs()
			if err != nil {
				return 0, err
			}
			bound = p.bound
		}
		if bound[a] {
			if err := b.changeAddr("delete address", a, b.links.delAddr); err != nil {
				return 0, fmt.Errorf("ipvs: %w", err)
			}
		}
		delete(b.idleSince, a)
		delete(b.state.bound, a)
		delete(b.notYetLocal, a)
	}
	return again, nil
}
