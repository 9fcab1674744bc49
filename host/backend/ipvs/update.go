package ipvs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// frontendUpdate is a frontend that changes, or the virtual servers that no frontend has any more.
type frontendUpdate struct {
	key     plan.Key
	next    *plan.Frontend // nil: it goes
	servers []serverUpdate
	errs    []error
	failed  bool // in the companion, as it was
}

// serverUpdate is one of a frontend's virtual servers, and what is wanted of it.
type serverUpdate struct {
	key          serverKey
	drains       bool // its connections go on until they are ended, unlike those of UDP
	wanted       bool
	config       serverConfig
	destinations []plan.Member
	// deferWeight keeps new members at weight 0 until the companion guards them.
	deferWeight bool
}

func (j *frontendUpdate) String() string {
	if j.next != nil {
		return j.next.Owner.String() + " " + j.key.String()
	}
	if j.key.Addr.IsValid() {
		return j.key.String()
	}
	return "left over"
}

// addError notes an error, beside which the job goes on.
func (j *frontendUpdate) addError(err error) {
	j.errs = append(j.errs, fmt.Errorf("ipvs: %s: %w", j, err))
}

// forEach does a step for every job. One that fails leaves its frontend as it is in the companion.
func forEach(jobs []*frontendUpdate, step func(*frontendUpdate) error) {
	for _, j := range jobs {
		if j.failed {
			continue
		}
		if err := step(j); err != nil {
			j.addError(err)
			j.failed = true
		}
	}
}

// deltaUpdates are what a delta asks for.
func (b *Backend) deltaUpdates(d *plan.Delta) []*frontendUpdate {
	out := make([]*frontendUpdate, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, b.newUpdate(c.Key, c.New))
	}
	return out
}

// allUpdates are everything that the plan or the kernel has.
func (b *Backend) allUpdates(next *plan.Plan) []*frontendUpdate {
	keys := next.Keys()
	for k := range b.state.listed {
		if next.Frontends[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, plan.Key.Compare)
	out := make([]*frontendUpdate, 0, len(keys))
	had := map[serverKey]bool{}
	for _, k := range keys {
		j := b.newUpdate(k, next.Frontends[k])
		for _, p := range j.servers {
			had[p.key] = true
		}
		out = append(out, j)
	}
	left := &frontendUpdate{}
	for _, k := range slices.SortedFunc(maps.Keys(b.state.servers), compareKeys) {
		if !had[k] {
			left.servers = append(left.servers, serverUpdate{key: k, drains: k.mark != 0 || k.proto != model.UDP})
		}
	}
	return append(out, left)
}

// newUpdate finds out what a frontend's virtual servers are to be.
func (b *Backend) newUpdate(k plan.Key, f *plan.Frontend) *frontendUpdate {
	j := &frontendUpdate{key: k}
	if f != nil {
		f, _ = plan.NormalizeFrontend(f, b.caps)
	}
	j.next = f
	if err := b.assignMarks(k, f); err != nil {
		j.addError(err)
		j.failed = true
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
		p := serverUpdate{key: key, drains: k.Protocol != model.UDP}
		if pool := pools[i]; pool != nil && len(pool.Members) > 0 {
			p.wanted, p.destinations, p.config = true, pool.Members, b.serverConfig(f)
		}
		if p.wanted || b.state.servers[key] != nil {
			j.servers = append(j.servers, p)
		}
	}
	return j
}
