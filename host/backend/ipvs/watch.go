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
	return b.rules.Watch(heard)
}

// destinationScan is where Moved goes on looking.
type destinationScan struct {
	keys []serverKey
	at   int
}

// scanBatch is of how many virtual servers Moved looks at the members each time.
const scanBatch = 256

// Moved implements backend.Watcher. Besides the companion it looks at all virtual servers and addresses, and at the
// members of some virtual servers, so that all are seen in turn. With 10,000 Services that is some 50 ms. Settings are
// put right at once; where one that is required cannot be, an Apply tells.
func (b *Backend) Drifted(ctx context.Context) (bool, error) {
	if err := b.applySysctls(false); err != nil {
		return true, nil
	}
	moved, err := b.rules.Drifted(ctx)
	if err != nil || moved || !b.stateTrusted {
		return moved, err
	}
	all, err := b.ipvs.listServers()
	if err != nil {
		return false, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for k, v := range all {
		if s := b.state.servers[k]; s != nil && v != s.serverConfig || s == nil && v.flags&flagOurs != 0 {
			return true, nil
		}
	}
	for k := range b.state.servers {
		if _, ok := all[k]; !ok {
			return true, nil
		}
	}
	p, err := b.links.listAddrs()
	if err != nil || !maps.Equal(p.bound, b.state.bound) || !maps.Equal(p.otherLinks, b.state.otherLinks) {
		return err == nil, err
	}
	if moved, err := b.localAddrsChanged(p.nodeLocal); moved || err != nil {
		return moved, err
	}
	return b.scanDestinations()
}

// localAddrsChanged tells whether the node has got an address of a frontend as its own, or has it no more.
func (b *Backend) localAddrsChanged(own map[netip.Addr]bool) (bool, error) {
	for a := range b.state.frontendsAt {
		if own[a] != b.state.localOnLinks[a] {
			return true, nil
		}
		if own[a] || !b.state.nodeLocal[a] {
			continue
		}
		if at, err := b.links.locate(a); err != nil || at != onNode { // a route made it the node's
			return err == nil, err
		}
	}
	return false, nil
}

// scanDestinations goes on with the members.
func (b *Backend) scanDestinations() (bool, error) {
	r := &b.scan
	if r.at >= len(r.keys) {
		r.keys, r.at = slices.SortedFunc(maps.Keys(b.state.servers), compareKeys), 0
	}
	for n := 0; n < scanBatch && r.at < len(r.keys); n++ {
		k := r.keys[r.at]
		r.at++
		s := b.state.servers[k]
		if s == nil {
			continue
		}
		members, err := b.readDestinations(k)
		if err != nil || !slices.Equal(members, s.destinations) {
			return err == nil, err
		}
	}
	return false, nil
}
