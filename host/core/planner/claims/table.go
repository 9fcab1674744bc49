// Package claims decides which Service has a frontend that several want, maintains the plan of those that have theirs, and
// records its changes.
package claims

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/cost"
)

// Table has the frontends that each Service wants, and the plan of those that it gets. Its cost follows the frontends that
// change, not the Services that want the same ones.
//
// Each key has the frontend of the first of its claims, by precedence, or none if that one's address belongs to another Service.
// A key has a queue exactly if one of its claims is not in the plan.
type Table struct {
	plan          *plan.Plan
	caps          *plan.Caps
	services      map[model.Name]*claimant
	queues        map[plan.Key]*claimQueue // all claims of the keys that have a claim that is not in the plan, by precedence
	addrs         addresses
	reassess      []reassessment              // work left by changes of addrs
	previous      map[plan.Key]*plan.Frontend // frontends of the changed keys as of the last Take
	globalChanged bool                        // since the last Take
	conflicts     int                         // claims that are not in the plan
	newlyLosing   map[*claimant]bool          // with a claim that has become a conflict since the last NewConflicts
	Work          Work
}

// Work counts what the table does, for tests.
type Work struct{ Comparisons, Puts int }

// claimant is a Service with what it wants.
type claimant struct {
	svc       *model.Service
	frontends []*plan.Frontend // sorted by key, unique
	partial   bool             // the last Set is not complete
}

// New returns a table without Services.
func New() *Table {
	return &Table{
		caps:        &plan.Caps{},
		plan:        &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}},
		services:    map[model.Name]*claimant{},
		queues:      map[plan.Key]*claimQueue{},
		addrs:       addresses{uses: map[netip.Addr][]addrUse{}},
		previous:    map[plan.Key]*plan.Frontend{},
		newlyLosing: map[*claimant]bool{},
	}
}

// Plan returns the current plan. It is read-only, and the table changes it in place.
func (t *Table) Plan() *plan.Plan { return t.plan }

// SetCaps sets the capabilities of the backend that programs the plan, and makes the frontends fit them.
func (t *Table) SetCaps(c *plan.Caps) {
	t.caps = c
	for _, by := range t.services {
		fit := plan.NewFitter(c)
		for i, old := range by.frontends {
			if f := fit.Fit(old); f != old {
				by.frontends[i] = f
				t.replace(by, old, f)
			}
		}
	}
}

// Wanted returns the frontends that a Service wants, sorted by key. It is read-only.
func (t *Table) Wanted(name model.Name) []*plan.Frontend {
	if c := t.services[name]; c != nil {
		return c.frontends
	}
	return nil
}

// Has returns the frontends of a Service that are in the plan, sorted by key.
func (t *Table) Has(name model.Name) iter.Seq[*plan.Frontend] {
	return func(yield func(*plan.Frontend) bool) {
		for _, f := range t.Wanted(name) {
			if t.plan.Frontends[f.Key] == f && !yield(f) {
				return
			}
		}
	}
}

// NumConflicts returns the number of frontends that a Service wants and does not get.
func (t *Table) NumConflicts() int { return t.conflicts }

// SetGlobal sets the global part of the plan.
func (t *Table) SetGlobal(g plan.Global) {
	if !t.plan.Global.Equal(&g) {
		t.plan.Global, t.globalChanged = g, true
	}
}

// Set sets the frontends that a Service wants; a nil svc removes the Service. The list is
// sorted by key and unique, see Sort; Set takes ownership of it. Frontends that are equal to the previous ones keep
// their pointers. It does as much as the budget allows and reports whether that is everything; if not, the same call continues.
func (t *Table) Set(name model.Name, svc *model.Service, frontends []*plan.Frontend, budget *cost.Budget) (done bool) {
	c := t.services[name]
	if c != nil && (svc == nil || c.svc.Created != svc.Created) { // its rank depends on its age
		if c.partial = !t.update(c, nil, budget); c.partial {
			return false
		}
		t.useAddrs(c, nil)
		delete(t.services, name)
		delete(t.newlyLosing, c)
		c = nil
	}
	if svc == nil {
		return true
	}
	if c == nil {
		c = &claimant{svc: &model.Service{Name: name, Created: svc.Created}}
		t.services[name] = c
	}
	t.useAddrs(c, svc)
	c.partial = !t.update(c, frontends, budget)
	return !c.partial
}

// Sort sorts frontends by key. Of several with the same key, it keeps the first one.
func Sort(list []*plan.Frontend) []*plan.Frontend {
	slices.SortStableFunc(list, func(f, g *plan.Frontend) int { return f.Key.Compare(g.Key) })
	return slices.CompactFunc(list, func(f, g *plan.Frontend) bool { return f.Key == g.Key })
}

// update replaces the frontends of a Service, in the order of their keys, until the budget is spent. It replaces elements of
// want that are equal to the previous ones by these.
func (t *Table) update(c *claimant, want []*plan.Frontend, budget *cost.Budget) (done bool) {
	old := c.frontends
	i, j := 0, 0
	for i < len(old) || j < len(want) {
		if budget.Spent() {
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
		if o != nil && f != nil && (o == f || equal(o, f, budget)) {
			want[j] = o
		} else if g := t.stepTo(o, f, budget); g != f {
			t.set(c, o, g)
			if order <= 0 {
				i++
			}
			c.frontends = slices.Concat(want[:j], []*plan.Frontend{g}, old[i:])
			return false
		} else {
			t.set(c, o, f)
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
func (t *Table) stepTo(old, f *plan.Frontend, budget *cost.Budget) *plan.Frontend {
	if budget == nil || t.caps.Step == nil {
		return f
	}
	next, programming := t.caps.Step(old, f, budget.Left)
	budget.Spend(programming)
	return next
}

// equal reports whether two frontends are equal, and spends the cost of comparing them.
func equal(f, g *plan.Frontend, budget *cost.Budget) bool {
	budget.Spend(cost.Frontend + (len(f.Pool.Endpoints)+len(f.SourceRanges))*cost.Look)
	return f.Equal(g)
}

// set replaces a frontend that a Service wants; nil is none.
func (t *Table) set(c *claimant, old, f *plan.Frontend) {
	if old != nil && f != nil && old.Kind == f.Kind {
		t.replace(c, old, f)
		return
	}
	if old != nil {
		t.release(c, old)
	}
	if f != nil {
		t.claim(c, f)
	}
}

// Take returns what has changed since the last Take.
func (t *Table) Take() *plan.Delta {
	d := &plan.Delta{}
	if t.globalChanged {
		g := t.plan.Global
		d.Global, t.globalChanged = &g, false
	}
	for k, old := range t.previous {
		now := t.plan.Frontends[k]
		if old == nil && now == nil || old != nil && now != nil && old.Equal(now) {
			continue
		}
		d.Changes = append(d.Changes, plan.Change{Key: k, Old: old, New: now})
	}
	if len(t.previous) > 0 {
		t.previous = map[plan.Key]*plan.Frontend{} // clear would cost as much as the map's largest size ever
	}
	slices.SortFunc(d.Changes, func(x, y plan.Change) int { return x.Key.Compare(y.Key) })
	return d
}

// put sets or, with a nil f, deletes the frontend of a key.
func (t *Table) put(k plan.Key, f *plan.Frontend) {
	t.Work.Puts++
	if _, recorded := t.previous[k]; !recorded {
		t.previous[k] = t.plan.Frontends[k]
	}
	if f == nil {
		delete(t.plan.Frontends, k)
	} else {
		t.plan.Frontends[k] = f
	}
}
