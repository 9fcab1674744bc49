package planner

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// builder maintains a plan and records its changes. Where several Services want the same frontend, kind decides first: the API
// server assigns a ClusterIP to one Service only, and an external address, which anyone may write into a Service, must not
// take it away. Within a kind the older Service gets it, by creation time, then by name.
type builder struct {
	plan           *plan.Plan
	wanted         map[model.Name]claim
	claimants      map[plan.Key][]model.Name   // Services that want a key which another one has, by precedence
	previous       map[plan.Key]*plan.Frontend // frontends of the changed keys as of the last Take
	globalChanged  bool                        // since the last Take
	newlyContested map[plan.Key]bool           // keys with a new claimant since the last NewConflicts
	conflicts      int                         // entries in claimants
}

// claim is what a Service wants.
type claim struct {
	created   int64
	frontends []*plan.Frontend
}

// newBuilder returns a builder of an empty plan.
func newBuilder() *builder {
	return &builder{
		plan:           &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}},
		wanted:         map[model.Name]claim{},
		claimants:      map[plan.Key][]model.Name{},
		previous:       map[plan.Key]*plan.Frontend{},
		newlyContested: map[plan.Key]bool{},
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

// Set sets the frontends that a Service wants; none removes the Service. Frontends that are equal to the previous ones keep
// their pointers.
func (b *builder) Set(name model.Name, created int64, frontends []*plan.Frontend) {
	old := b.wanted[name]
	for i, f := range frontends {
		for _, o := range old.frontends {
			if o.Key == f.Key && o.Equal(f) {
				frontends[i] = o
			}
		}
	}
	if len(frontends) == 0 {
		delete(b.wanted, name)
	} else {
		b.wanted[name] = claim{created, frontends}
	}
	for _, o := range old.frontends {
		if f := findFrontend(frontends, o.Key); f == nil || f.Kind != o.Kind || old.created != created {
			b.release(name, o.Key) // the claim is gone or has changed
		}
	}
	for i, f := range frontends {
		if !hasKey(frontends[:i], f.Key) {
			b.assign(name, f)
		}
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

// Conflicts returns the frontends that a Service wants and another one has, sorted.
func (b *builder) Conflicts() []plan.Degradation {
	var out []plan.Degradation
	for k, names := range b.claimants {
		for _, n := range names {
			out = append(out, b.conflict(k, n))
		}
	}
	slices.SortFunc(out, func(x, y plan.Degradation) int {
		if c := x.Frontend.Compare(y.Frontend); c != 0 {
			return c
		}
		return x.Owner.Compare(y.Owner)
	})
	return out
}

func (b *builder) conflict(k plan.Key, claimant model.Name) plan.Degradation {
	owner, kind := b.plan.Frontends[k].Owner, b.plan.Frontends[k].Kind
	f := findFrontend(b.wanted[claimant].frontends, k)
	why := "the older Service " + owner.String() + " has it"
	switch {
	case kind != f.Kind:
		why = "Service " + owner.String() + " has it as its " + kind.String()
	case b.wanted[claimant].created == b.wanted[owner.Service].created:
		why = "Service " + owner.String() + " has it: none is older, and its name comes first"
	}
	return plan.Degradation{Frontend: k, Owner: f.Owner, Wanted: f.Kind.String(), Got: "no frontend", Why: why}
}

// NewConflicts returns the conflicts that are new since the last call, sorted.
func (b *builder) NewConflicts() []plan.Degradation {
	if len(b.newlyContested) == 0 {
		return nil
	}
	out := slices.DeleteFunc(b.Conflicts(), func(d plan.Degradation) bool { return !b.newlyContested[d.Frontend] })
	b.newlyContested = map[plan.Key]bool{}
	return out
}

// assign puts f into the plan, or adds its Service to the claimants of its key.
func (b *builder) assign(name model.Name, f *plan.Frontend) {
	current := b.plan.Frontends[f.Key]
	switch {
	case current == f:
	case current == nil || current.Owner.Service == name:
		b.put(f.Key, f)
	case b.precedes(f.Key, name, current.Owner.Service):
		b.addClaimant(current.Owner.Service, f.Key)
		b.removeClaimant(name, f.Key)
		b.put(f.Key, f)
	default:
		b.addClaimant(name, f.Key)
	}
}

// release removes a Service from a key and assigns the key to the first claimant.
func (b *builder) release(name model.Name, k plan.Key) {
	b.removeClaimant(name, k)
	current := b.plan.Frontends[k]
	if current == nil || current.Owner.Service != name {
		return
	}
	var next *plan.Frontend
	if line := b.claimants[k]; len(line) > 0 {
		next = findFrontend(b.wanted[line[0]].frontends, k)
		b.removeClaimant(line[0], k)
	}
	b.put(k, next)
}

// put sets or, with a nil f, deletes the frontend of a key.
func (b *builder) put(k plan.Key, f *plan.Frontend) {
	if _, recorded := b.previous[k]; !recorded {
		b.previous[k] = b.plan.Frontends[k]
	}
	if f == nil {
		delete(b.plan.Frontends, k)
	} else {
		b.plan.Frontends[k] = f
	}
}

func (b *builder) addClaimant(name model.Name, k plan.Key) {
	line := b.claimants[k]
	if slices.Contains(line, name) {
		return
	}
	b.conflicts++
	b.newlyContested[k] = true
	line = append(slices.Clone(line), name)
	slices.SortFunc(line, func(x, y model.Name) int {
		if b.precedes(k, x, y) {
			return -1
		}
		return 1
	})
	b.claimants[k] = line
}

func (b *builder) removeClaimant(name model.Name, k plan.Key) {
	line := b.claimants[k]
	if i := slices.Index(line, name); i >= 0 {
		b.conflicts--
		if line = slices.Delete(slices.Clone(line), i, i+1); len(line) == 0 {
			delete(b.claimants, k)
		} else {
			b.claimants[k] = line
		}
	}
}

// precedes reports whether Service x takes precedence over y for a key.
func (b *builder) precedes(k plan.Key, x, y model.Name) bool {
	cx, cy := b.wanted[x], b.wanted[y]
	return cmp.Or(
		cmp.Compare(precedence(findFrontend(cx.frontends, k)), precedence(findFrontend(cy.frontends, k))),
		cmp.Compare(cx.created, cy.created), x.Compare(y)) < 0
}

// precedence returns the rank of a frontend's kind, 0 first.
func precedence(f *plan.Frontend) int {
	if f == nil {
		return int(plan.NodePort) + 1
	}
	return slices.Index([]plan.Kind{plan.ClusterIP, plan.NodePort, plan.LoadBalancer, plan.ExternalIP}, f.Kind)
}

func hasKey(fs []*plan.Frontend, k plan.Key) bool { return findFrontend(fs, k) != nil }

func findFrontend(fs []*plan.Frontend, k plan.Key) *plan.Frontend {
	for _, f := range fs {
		if f.Key == k {
			return f
		}
	}
	return nil
}
