package ipvs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// frontendUpdate is the work for one frontend. With a zero key it is that for the virtual servers that no frontend
// uses.
type frontendUpdate struct {
	key     plan.Key
	next    *plan.Frontend // stripped; nil to delete it
	servers []serverUpdate
	errs    []error
	failed  bool // its nftables rules must stay as they are
}

// serverUpdate is the work for one virtual server of a frontend.
type serverUpdate struct {
	key          serverKey
	drains       bool // removed destinations stay for their connections; not for UDP
	wanted       bool
	config       serverConfig
	destinations []plan.Endpoint
	// deferWeight: new destinations have weight 0 until the nftables rules contain the frontend.
	deferWeight bool
}

func (u *frontendUpdate) String() string {
	if u.next != nil {
		return u.next.Owner.String() + " " + u.key.String()
	}
	if u.key.Addr.IsValid() {
		return u.key.String()
	}
	return "unused virtual servers"
}

// addError records an error that does not keep the rest of the update from being done.
func (u *frontendUpdate) addError(err error) {
	u.errs = append(u.errs, fmt.Errorf("ipvs: %s: %w", u, err))
}

// fail records an error that keeps the nftables rules of the frontend as they are.
func (u *frontendUpdate) fail(err error) {
	u.addError(err)
	u.failed = true
}

// forEach performs a step of every update that has not failed.
func forEach(updates []*frontendUpdate, step func(*frontendUpdate) error) {
	for _, u := range updates {
		if u.failed {
			continue
		}
		if err := step(u); err != nil {
			u.fail(err)
		}
	}
}

// deltaUpdates returns the updates for the changes of a delta.
func (b *Backend) deltaUpdates(d *plan.Delta) []*frontendUpdate {
	out := make([]*frontendUpdate, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, b.newUpdate(c.Key, c.New))
	}
	return out
}

// allUpdates returns an update for each frontend of the plan or the kernel, and one for unused virtual servers.
func (b *Backend) allUpdates(next *plan.Plan) []*frontendUpdate {
	keys := next.Keys()
	for k := range b.state.listed {
		if next.Frontends[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, plan.Key.Compare)
	out := make([]*frontendUpdate, 0, len(keys)+1)
	used := map[serverKey]bool{}
	for _, k := range keys {
		u := b.newUpdate(k, next.Frontends[k])
		for _, s := range u.servers {
			used[s.key] = true
		}
		out = append(out, u)
	}
	unused := &frontendUpdate{}
	for _, k := range slices.SortedFunc(maps.Keys(b.state.servers), compareKeys) {
		if !used[k] {
			unused.servers = append(unused.servers, serverUpdate{key: k, drains: k.mark != 0 || k.proto != model.UDP})
		}
	}
	return append(out, unused)
}

// newUpdate determines which virtual servers a frontend needs.
func (b *Backend) newUpdate(k plan.Key, f *plan.Frontend) *frontendUpdate {
	u := &frontendUpdate{key: k}
	if f != nil {
		f = b.caps.Strip(f)
	}
	u.next = f
	if err := b.assignMarks(k, f); err != nil {
		u.fail(err)
	}
	main, inside, outside := b.state.serverKeys(k)
	var pools [3]*plan.Pool
	switch {
	case f == nil:
	case k.IsNodePort():
		pools[1], pools[2] = &f.Pool, f.Outside
	case f.Outside != nil:
		pools[0], pools[1] = f.Outside, &f.Pool
	default:
		pools[0] = &f.Pool
	}
	for i, key := range []serverKey{main, inside, outside} {
		if key == (serverKey{}) {
			continue
		}
		s := serverUpdate{key: key, drains: k.Protocol != model.UDP}
		if pool := pools[i]; pool != nil && len(pool.Endpoints) > 0 {
			s.wanted, s.destinations, s.config = true, pool.Endpoints, b.serverConfig(f)
		}
		if s.wanted || b.state.servers[key] != nil {
			u.servers = append(u.servers, s)
		}
	}
	return u
}
