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

// place is where an address is that is not on the link.
type place uint8

const (
	away    place = iota
	onNode        // the node's own, and stays
	passing       // the node's for now: a link of kube-proxy's has it, until it is cleaned away
)

// learn finds out whether an address that a frontend is new at is the node's own.
func (b *Backend) learn(j *job) error {
	a := j.key.Addr
	if j.next == nil || j.key.IsNodePort() || b.now.bound[a] || b.now.own[a] {
		return nil
	}
	at, err := b.links.where(a)
	if err != nil {
		return fmt.Errorf("look up the route to %s: %w", a, err)
	}
	switch at {
	case onNode:
		b.now.own[a] = true
	case passing:
		b.now.passing[a] = true
	}
	return nil
}

// guard has the companion refuse what comes to addresses that are about to be the node's, until their frontends are
// there: else a packet would meet the node's own servers, or IPVS without the companion. Not so where somebody else
// forwards what comes to them until then.
func (b *Backend) guard(ctx context.Context, jobs []*job) error {
	var fresh []netip.Addr
	for _, j := range jobs {
		a := j.key.Addr
		if !j.stays && j.next != nil && !j.key.IsNodePort() && !b.now.own[a] && !b.now.passing[a] && !b.now.guarded[a] {
			b.now.guarded[a] = true
			if !b.now.linked[a] {
				fresh = append(fresh, a)
			}
		}
	}
	if len(fresh) == 0 || b.now.replaces { // in a change of mode they come with the companion
		return nil
	}
	if err := b.link(ctx, fresh, nil); err != nil {
		for _, j := range jobs {
			if !j.stays && j.next != nil && slices.Contains(fresh, j.key.Addr) {
				j.fail(err)
				j.stays = true
			}
		}
	}
	return nil
}

// link has the companion guard addresses, and no longer guard others; once more when that fails.
func (b *Backend) link(ctx context.Context, add, del []netip.Addr) error {
	r, err := b.companion.Guard(ctx, add, del)
	b.sent.add(r)
	if err != nil && ctx.Err() == nil {
		b.log.Debug("the companion of IPVS: trying once more", "err", err)
		r, err = b.companion.Guard(ctx, add, del)
		b.sent.add(r)
	}
	if err != nil {
		b.unsure = true
		return fmt.Errorf("the companion: %w", err)
	}
	return nil
}

// bind makes a frontend's address the node's.
func (b *Backend) bind(j *job) error {
	if j.next == nil {
		return nil
	}
	a := j.key.Addr
	if j.key.IsNodePort() || b.now.bound[a] || b.now.own[a] {
		return nil
	}
	return b.put(a)
}

// put adds an address to the link. One that somebody else has put there meanwhile is the node's own.
func (b *Backend) put(a netip.Addr) error {
	err := b.address("add address", a, b.links.add)
	switch {
	case err == nil:
		b.now.bound[a] = true
	case errors.Is(err, unix.EEXIST):
		b.now.own[a], b.now.onLinks[a] = true, true
	default:
		return err
	}
	return nil
}

// move takes addresses off other links, after they are on this one. One that cannot be there stays where it is.
func (b *Backend) move() error {
	for _, a := range slices.SortedFunc(maps.Keys(b.now.strays), netip.Addr.Compare) {
		if needed := b.now.vips[a] > 0 || b.now.busy(a); needed && !b.now.bound[a] && !b.now.own[a] {
			if err := b.put(a); err != nil {
				b.log.Warn("an address stays on another link", "address", a, "err", err)
				continue
			}
			b.idle[a] = b.o.Now()
		}
		b.sent.Messages++
		b.sent.Elements++
		if err := b.links.leave(a); err != nil {
			return fmt.Errorf("ipvs: take address %s off a link that is not %s: %w", a, b.o.Link, hint(err))
		}
		delete(b.now.strays, a)
	}
	return b.links.discard()
}

// leaveAfter is how long an address stays that nothing needs any more: what conntrack knows of UDP has been forgotten by
// then, and does not go out by the default route.
const leaveAfter = time.Second

// rest notes that an address may have become idle.
func (b *Backend) rest(a netip.Addr) {
	if _, ok := b.idle[a]; !ok && b.now.bound[a] {
		b.idle[a] = b.o.Now()
	}
}

// restAll does so with all addresses.
func (b *Backend) restAll() {
	for a := range b.now.bound {
		b.rest(a)
	}
}

// unbind takes addresses away that have had neither frontends nor virtual servers for long enough. The companion guards
// them until unguard. It tells when to do so again.
func (b *Backend) unbind() (again time.Duration, err error) {
	now := b.o.Now()
	var is map[netip.Addr]bool // asked once, as whose an address is may have changed
	for _, a := range slices.SortedFunc(maps.Keys(b.idle), netip.Addr.Compare) {
		own := b.now.own[a] // by now: it has it without us
		if !b.now.bound[a] || !own && (b.now.vips[a] > 0 || b.now.busy(a)) {
			delete(b.idle, a)
			continue
		}
		if wait := b.idle[a].Add(leaveAfter).Sub(now); wait > 0 && !own {
			again = max(again, wait)
			continue
		}
		if is == nil {
			p, err := b.links.list()
			if err != nil {
				return 0, err
			}
			is = p.bound
		}
		if is[a] {
			if err := b.address("delete address", a, b.links.del); err != nil {
				return 0, err
			}
		}
		delete(b.idle, a)
		delete(b.now.bound, a)
	}
	return again, nil
}

// unguard has the companion leave addresses alone that are no longer the node's.
func (b *Backend) unguard(ctx context.Context) error {
	if len(b.now.guarded) == len(b.now.bound) {
		return nil
	}
	var gone []netip.Addr
	for a := range b.now.guarded {
		if !b.now.bound[a] && !b.now.strays[a] && (b.now.vips[a] == 0 || b.now.own[a]) {
			gone = append(gone, a)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	slices.SortFunc(gone, netip.Addr.Compare)
	for _, a := range gone {
		delete(b.now.guarded, a)
	}
	return b.link(ctx, nil, gone)
}
