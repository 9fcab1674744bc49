package ipvs

import (
	"context"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/engine"
)

// Watch implements engine.Watcher: what others write to the companion is heard at once. IPVS tells nobody of anything;
// Moved looks.
func (b *Backend) Watch(heard func(engine.Foreign)) (stop func(), err error) {
	return b.companion.Watch(heard)
}

// rolling is where Moved goes on looking.
type rolling struct {
	keys []serverKey
	at   int
}

// atOnce is how many virtual servers Moved looks at each time.
const atOnce = 64

// Moved implements engine.Watcher. Besides the companion it looks at some of the virtual servers each time, so that all
// are seen in turn.
func (b *Backend) Moved(ctx context.Context) (bool, error) {
	moved, err := b.companion.Moved(ctx)
	if err != nil || moved || !b.trusted {
		return moved, err
	}
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
		v, ok, err := b.ipvs.server(k)
		if err != nil {
			return false, err
		}
		members, err := b.membersOf(k)
		if err != nil {
			return false, err
		}
		if !ok || v != s.service || !slices.Equal(members, s.members) {
			return true, nil
		}
		if k.mark == 0 && b.now.bound[k.addr] {
			if local, err := b.links.local(k.addr); err != nil || !local {
				return true, err
			}
		}
	}
	return false, nil
}
