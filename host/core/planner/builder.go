package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// builder maintains a plan and records its changes. Its cost follows the frontends that change, not the Services that want
// the same ones.
type builder struct {
	plan          *plan.Plan
	caps          plan.Caps
	services      map[model.Name]*claimant
	queues        map[plan.Key]*claimQueue    // all claims of the keys that have a claim that is not in the plan, by precedence
	addrs         map[netip.Addr][]addrUse    // the Services that have an address, by precedence
	shared        map[netip.Addr]bool         // see SetShared
	reserved      map[plan.Key]bool           // see SetReserved
	reservedAddrs map[netip.Addr]bool         // those of reserved
	owner         func(netip.Addr) string     // whose an address is that no Service may have; nil: any may
	reassess      []reassessment              // work left by changes of addrs
	previous      map[plan.Key]*plan.Frontend // frontends of the changed keys as of the last Take
	globalChanged bool                        // since the last Take
	conflicts     int                         // claims that are not in the plan
	newlyLosing   map[*claimant]bool          // with a claim that has become a conflict since the last NewConflicts
	work          workCount
}

// workCount counts what the builder does, for tests.
type workCount struct{ comparisons, puts int }

// claimant is a Service with what it wants.
type claimant struct {
	svc       *model.Service
	frontends []*plan.Frontend // sorted by key, unique
	partial   bool             // the last Set is not complete
}

// newBuilder returns a builder of an empty plan.
func newBuilder() *builder {
	return &builder{
		plan:        &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}},
		services:    map[model.Name]*claimant{},
		queues:      map[plan.Key]*claimQueue{},
		addrs:       map[netip.Addr][]addrUse{},
		previous:    map[plan.Key]*plan.Frontend{},
		newlyLosing: map[*claimant]bool{},
	}
}

// Plan returns the current plan. It is read-only, and the builder changes it in place.
func (b *builder) Plan() *plan.Plan { return b.plan }

// SetGlobal sets the global part.
func (b *builder) SetGlobal(g plan.Global) {
	if !b.plan.Global.Equal(&g) {
		b.plan.Global, b.globalChanged = g, true
	}
}

// Set sets the frontends that a Service wants; a nil svc removes the Service. The list is
// sorted by key and unique, see sortFrontends; Set takes ownership of it. Frontends that are equal to the previous ones keep
// their pointers. It does as much as the budget allows and reports whether that is everything; if not, the same call continues.
func (b *builder) Set(name model.Name, svc *model.Service, frontends []*plan.Frontend, budget *budget) (done bool) {
	c := b.services[name]
	if c != nil && (svc == nil || c.svc.Created != svc.Created) { // its rank depends on its age
		if c.partial = !b.update(c, nil, budget); c.partial {
			return false
		}
		b.useAddrs(c, nil)
		delete(b.services, name)
		delete(b.newlyLosing, c)
		c = nil
	}
	if svc == nil {
		return true
	}
	if c == nil {
		c = &claimant{svc: &model.Service{Name: name, Created: svc.Created}}
		b.services[name] = c
	}
	b.useAddrs(c, svc)
	c.partial = !b.update(c, frontends, budget)
	return !c.partial
}

// sortFrontends sorts frontends by key. Of several with the same key, it keeps the first one.
func sortFrontends(list []*plan.Frontend) []*plan.Frontend {
	slices.SortStableFunc(list, func(f, g *plan.Frontend) int { return f.Key.Compare(g.Key) })
	return slices.CompactFunc(list, func(f, g *plan.Frontend) bool { return f.Key == g.Key })
}

// update replaces the frontends of a Service, in the order of their keys, until the budget is spent. It replaces elements of
// want that are equal to the previous ones by these.
func (b *builder) update(c *claimant, want []*plan.Frontend, budget *budget) (done bool) {
	old := c.frontends
	i, j := 0, 0
	for i < len(old) || j < len(want) {
		if budget.spent() {
			c.frontends = slices.Concat(want[:j], old[i:])
			return false
		}
		order := -1
		switch {
		case i == len(old):
			order = 1
		case j < len(want):
			order = old[i].Key.Compare(want[j].Key)
		}
		var o, f *plan.Frontend
		if order <= 0 {
			o = old[i]
		}
		if order >= 0 {
			f = want[j]
		}
		if o != nil && f != nil && (o == f || budget.equal(o, f)) {
			want[j] = o
		} else if g := b.stepTo(o, f, budget); g != f {
			b.set(c, o, g)
			if order <= 0 {
				i++
			}
			c.frontends = slices.Concat(want[:j], []*plan.Frontend{g}, old[i:])
			return false
		} else {
			b.set(c, o, f)
		}
		if order <= 0 {
			i++
		}
		if order >= 0 {
			j++
		}
	}
	c.frontends = want
	return true
}

// stepTo returns what a frontend becomes on the way to f: f itself, if the budget allows.
func (b *builder) stepTo(old, f *plan.Frontend, budget *budget) *plan.Frontend {
	if budget == nil || b.caps.Step == nil {
		return f
	}
	next, cost := b.caps.Step(old, f, budget.left)
	budget.spend(cost)
	return next
}

// set replaces a frontend that a Service wants; nil is none.
func (b *builder) set(c *claimant, old, f *plan.Frontend) {
	if old != nil && f != nil && old.Kind == f.Kind {
		b.replace(c, old, f)
		return
	}
	if old != nil {
		b.release(c, old)
	}
	if f != nil {
		b.claim(c, f)
	}
}

// Take returns what has changed since the last Take.
func (b *builder) Take() *plan.Delta {
	d := &plan.Delta{}
	if b.globalChanged {
		g := b.plan.Global
		d.Global, b.globalChanged = &g, false
	}
	for k, old := range b.previous {
		now := b.plan.Frontends[k]
		if old == nil && now == nil || old != nil && now != nil && old.Equal(now) {
			continue
		}
		d.Changes = append(d.Changes, plan.Change{Key: k, Old: old, New: now})
	}
	if len(b.previous) > 0 {
		b.previous = map[plan.Key]*plan.Frontend{} // clear would cost as much as the map's largest size ever
	}
	slices.SortFunc(d.Changes, func(x, y plan.Change) int { return x.Key.Compare(y.Key) })
	return d
}

// put sets or, with a nil f, deletes the frontend of a key.
func (b *builder) put(k plan.Key, f *plan.Frontend) {
	b.work.puts++
	if _, recorded := b.previous[k]; !recorded {
		b.previous[k] = b.plan.Frontends[k]
	}
	if f == nil {
		delete(b.plan.Frontends, k)
	} else {
		b.plan.Frontends[k] = f
	}
}
