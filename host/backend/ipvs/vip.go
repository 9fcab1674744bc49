package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// addrLocation is where an address is that is not on the link.
type addrLocation uint8

const (
	notOnNode       addrLocation = iota
	onNode                       // the node's own, and stays
	onKubeProxyLink              // the node's for now: a link of kube-proxy's has it, until it is cleaned away
)

// lookupLocal finds out whether an address that a frontend is new at is the node's own.
func (b *Backend) lookupLocal(j *frontendUpdate) error {
	a := j.key.Addr
	if j.next == nil || j.key.IsNodePort() || b.state.bound[a] || b.state.nodeLocal[a] {
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

// addGuards has the companion refuse what comes to addresses that are about to be the node's, until their frontends are
// there: else a packet would meet the node's own servers, or IPVS without the companion. Not so where somebody else
// forwards what comes to them until then.
func (b *Backend) addGuards(ctx context.Context, jobs []*frontendUpdate) error {
	var fresh []netip.Addr
	for _, j := range jobs {
		a := j.key.Addr
		if !j.failed && j.next != nil && !j.key.IsNodePort() && !b.state.nodeLocal[a] && !b.state.kubeProxyOwned[a] && !b.state.guarded[a] {
			b.state.guarded[a] = true
			if !b.state.guardsRead[a] {
				fresh = append(fresh, a)
			}
		}
	}
	if len(fresh) == 0 || b.state.switchingMode { // in a change of mode they come with the companion
		return nil
	}
	if err := b.updateGuards(ctx, fresh, nil); err != nil {
		for _, j := range jobs {
			if !j.failed && j.next != nil && slices.Contains(fresh, j.key.Addr) {
				j.addError(err)
				j.failed = true
			}
		}
	}
	return nil
}

// updateGuards has the companion guard addresses, and no longer guard others; once more when that fails.
func (b *Backend) updateGuards(ctx context.Context, add, del []netip.Addr) error {
	r, err := b.rules.Guard(ctx, add, del)
	b.stats.addReport(r)
	if err != nil && ctx.Err() == nil {
		b.log.Debug("the companion of IPVS: trying once more", "err", err)
		r, err = b.rules.Guard(ctx, add, del)
		b.stats.addReport(r)
	}
	if err != nil {
		b.stateSuspect = true
		return fmt.Errorf("the companion: %w", err)
	}
	return nil
}

// bindFrontend makes a frontend's address the node's.
func (b *Backend) bindFrontend(j *frontendUpdate) error {
	if j.next == nil {
		return nil
	}
	a := j.key.Addr
	if j.key.IsNodePort() || b.state.bound[a] || b.state.nodeLocal[a] {
		return nil
	}
	return b.bindVIP(a)
}

// bindVIP adds an address to the link. One that somebody else has put there meanwhile is the node's own.
func (b *Backend) bindVIP(a netip.Addr) error {
	err := b.changeAddr("add address", a, b.links.addAddr)
	switch {
	case err == nil:
		b.state.bound[a] = true
	case errors.Is(err, unix.EEXIST):
		b.state.nodeLocal[a], b.state.localOnLinks[a] = true, true
	default:
		return err
	}
	return nil
}

// migrateLink takes addresses off other links, after they are on this one. One that cannot be there stays where it is.
func (b *Backend) migrateLink() error {
	for _, a := range slices.SortedFunc(maps.Keys(b.state.otherLinks), netip.Addr.Compare) {
		if needed := b.state.frontendsAt[a] > 0 || b.state.usedByServer(a); needed && !b.state.bound[a] && !b.state.nodeLocal[a] {
			if err := b.bindVIP(a); err != nil {
				b.log.Warn("an address stays on another link", "address", a, "err", err)
				continue
			}
			b.idleSince[a] = b.o.Now()
		}
		b.stats.Messages++
		b.stats.Elements++
		if err := b.links.delFromOtherLinks(a); err != nil {
			return fmt.Errorf("ipvs: take address %s off a link that is not %s: %w", a, b.o.Link, withHint(err))
		}
		delete(b.state.otherLinks, a)
	}
	return b.links.deleteUnusedDefault()
}

// unbindDelay is how long an address stays that nothing needs any more: what conntrack knows of UDP has been forgotten by
// then, and does not go out by the default route.
const unbindDelay = time.Second

// markIdle notes that an address may have become idle.
func (b *Backend) markIdle(a netip.Addr) {
	if _, ok := b.idleSince[a]; !ok && b.state.bound[a] {
		b.idleSince[a] = b.o.Now()
	}
}

// markAllIdle does so with all addresses.
func (b *Backend) markAllIdle() {
	for a := range b.state.bound {
		b.markIdle(a)
	}
}

// unbindIdle takes addresses away that have had neither frontends nor virtual servers for long enough. The companion guards
// them until unguard. It tells when to do so again.
func (b *Backend) unbindIdle() (again time.Duration, err error) {
	now := b.o.Now()
	var is map[netip.Addr]bool // asked once, as whose an address is may have changed
	for _, a := range slices.SortedFunc(maps.Keys(b.idleSince), netip.Addr.Compare) {
		own := b.state.nodeLocal[a] // by now: it has it without us
		if !b.state.bound[a] || !own && (b.state.frontendsAt[a] > 0 || b.state.usedByServer(a)) {
			delete(b.idleSince, a)
			continue
		}
		if wait := b.idleSince[a].Add(unbindDelay).Sub(now); wait > 0 && !own {
			again = max(again, wait)
			continue
		}
		if is == nil {
			p, err := b.links.listAddrs()
			if err != nil {
				return 0, err
			}
			is = p.bound
		}
		if is[a] {
			if err := b.changeAddr("delete address", a, b.links.delAddr); err != nil {
				return 0, err
			}
		}
		delete(b.idleSince, a)
		delete(b.state.bound, a)
	}
	return again, nil
}

// releaseGuards has the companion leave addresses alone that are no longer the node's.
func (b *Backend) releaseGuards(ctx context.Context) error {
	if len(b.state.guarded) == len(b.state.bound) {
		return nil
	}
	var gone []netip.Addr
	for a := range b.state.guarded {
		if !b.state.bound[a] && !b.state.otherLinks[a] && (b.state.frontendsAt[a] == 0 || b.state.nodeLocal[a]) {
			gone = append(gone, a)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	slices.SortFunc(gone, netip.Addr.Compare)
	for _, a := range gone {
		delete(b.state.guarded, a)
	}
	return b.updateGuards(ctx, nil, gone)
}
