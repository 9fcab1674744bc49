package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
)

// Watch implements backend.Watcher: what others write to the companion is heard at once. IPVS tells nobody of anything;
// Moved looks.
func (b *Backend) Watch(heard func(backend.ExternalChange)) (stop func(), err error) {
	return b.companion.Watch(heard)
}

// rolling is where Moved goes on looking.
type rolling struct {
	keys []serverKey
	at   int
}

// atOnce is of how many virtual servers Moved looks at the members each time.
const atOnce = 256

// Moved implements backend.Watcher. Besides the companion it looks at all virtual servers and addresses, and at the
// members of some virtual servers, so that all are seen in turn. With 10,000 Services that is some 50 ms. Settings are
// put right at once; where one that is required cannot be, an Apply tells.
func (b *Backend) Drifted(ctx context.Context) (bool, error) {
	if err := b.settings(false); err != nil {
		return true, nil
	}
	moved, err := b.companion.Drifted(ctx)
	if err != nil || moved || !b.trusted {
		return moved, err
	}
	all, err := b.ipvs.servers()
	if err != nil {
		return false, fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	for k, v := range all {
		if s := b.now.servers[k]; s != nil && v != s.service || s == nil && v.flags&flagOurs != 0 {
			return true, nil
		}
	}
	for k := range b.now.servers {
		if _, ok := all[k]; !ok {
			return true, nil
		}
	}
	p, err := b.links.list()
	if err != nil || !maps.Equal(p.bound, b.now.bound) || !maps.Equal(p.strays, b.now.strays) {
		return err == nil, err
	}
	if moved, err := b.ownMoved(p.own); moved || err != nil {
		return moved, err
	}
	return b.someMoved()
}

// ownMoved tells whether the node has got an address of a frontend as its own, or has it no more.
func (b *Backend) ownMoved(own map[netip.Addr]bool) (bool, error) {
	for a := range b.now.vips {
		if own[a] != b.now.onLinks[a] {
			return true, nil
		}
		if own[a] || !b.now.own[a] {
			continue
		}
		if at, err := b.links.where(a); err != nil || at != onNode { // a route made it the node's
			return err == nil, err
		}
	}
	return false, nil
}

// someMoved goes on with the members.
func (b *Backend) someMoved() (bool, error) {
	r := &b.moved
	if r.at >= len(r.keys) {
		r.keys, r.at = slices.SortedFunc(maps.Keys(b.now.servers), compareServers), 0
	}
	for n := 0; n < atOnce && r.at < len(r.keys); n++ {
		k := r.keys[r.at]
		r.at++
		s := b.now.servers[k]
		if s == nil {
			continue
		}
		members, err := b.membersOf(k)
		if err != nil || !slices.Equal(members, s.members) {
			return err == nil, err
		}
	}
	return false, nil
}
