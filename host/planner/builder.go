package planner

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// builder keeps a plan and reports what changes in it, at the cost of the change. Where two Services want the same
// frontend, it goes by kind: the API server gives a ClusterIP to one Service only, and an external address, which anybody
// may write into a Service, must not take it away. Of one kind the older Service has it, by creation, then by name.
type builder struct {
	plan    *plan.Plan
	wanted  map[model.Name]claim
	rivals  map[plan.Key][]model.Name   // Services that want a key which another one has, most deserving first
	before  map[plan.Key]*plan.Frontend // what the changed keys held at the last Take
	globals bool                        // Global has changed since the last Take
	newly   map[plan.Key]bool           // keys that a Service came to want in vain since the last Contested
	waiting int                         // in rivals
}

type claim struct {
	created   int64
	frontends []*plan.Frontend
}

// newBuilder starts with an empty plan.
func newBuilder() *builder {
	return &builder{
		plan:   &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}},
		wanted: map[model.Name]claim{},
		rivals: map[plan.Key][]model.Name{},
		before: map[plan.Key]*plan.Frontend{},
		newly:  map[plan.Key]bool{},
	}
}

// Plan is the present plan. It belongs to the Builder, which changes it in place.
func (b *builder) Plan() *plan.Plan { return b.plan }

// SetGlobal sets the global part.
func (b *builder) SetGlobal(g plan.Global) {
	if !b.plan.Global.Equal(&g) {
		b.plan.Global, b.globals = g, true
	}
}

// Set says what a Service wants now: nothing takes it out. Frontends that are equal to the ones before stay the same
// pointers.
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
		if f := find(frontends, o.Key); f == nil || f.Kind != o.Kind || old.created != created {
			b.release(name, o.Key) // its claim is gone, or another one than before
		}
	}
	for i, f := range frontends {
		if !hasKey(frontends[:i], f.Key) {
			b.claim(name, f)
		}
	}
}

// Take gives what changed since the last Take.
func (b *builder) Take() *plan.Delta {
	d := &plan.Delta{}
	if b.globals {
		g := b.plan.Global
		d.Global, b.globals = &g, false
	}
	for k, old := range b.before {
		now := b.plan.Frontends[k]
		if old == nil && now == nil || old != nil && now != nil && old.Equal(now) {
			continue
		}
		d.Changes = append(d.Changes, plan.Change{Key: k, Old: old, New: now})
	}
	if len(b.before) > 0 {
		b.before = map[plan.Key]*plan.Frontend{} // not clear: that costs as much as the map was ever large
	}
	slices.SortFunc(d.Changes, func(x, y plan.Change) int { return x.Key.Compare(y.Key) })
	return d
}

// Conflicts are the frontends that a Service wants and another one has, sorted.
func (b *builder) Conflicts() []plan.Degradation {
	var out []plan.Degradation
	for k, names := range b.rivals {
		holder := b.plan.Frontends[k].Owner
		for _, n := range names {
			f := find(b.wanted[n].frontends, k)
			why := "the older Service " + holder.String() + " has it"
			switch kind := b.plan.Frontends[k].Kind; {
			case kind != f.Kind:
				why = "Service " + holder.String() + " has it as its " + kind.String()
			case b.wanted[n].created == b.wanted[holder.Service].created:
				why = "Service " + holder.String() + " has it: none is older, and its name comes first"
			}
			out = append(out, plan.Degradation{Frontend: k, Owner: f.Owner, Wanted: f.Kind.String(), Got: "no frontend", Why: why})
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

// Contested are the conflicts that are new since the last call, sorted.
func (b *builder) Contested() []plan.Degradation {
	if len(b.newly) == 0 {
		return nil
	}
	out := slices.DeleteFunc(b.Conflicts(), func(d plan.Degradation) bool { return !b.newly[d.Frontend] })
	b.newly = map[plan.Key]bool{}
	return out
}

// claim puts f into the plan, or in line behind the Service that has its key.
func (b *builder) claim(name model.Name, f *plan.Frontend) {
	held := b.plan.Frontends[f.Key]
	switch {
	case held == f:
	case held == nil || held.Owner.Service == name:
		b.put(f.Key, f)
	case b.deserves(f.Key, name, held.Owner.Service):
		b.queue(held.Owner.Service, f.Key)
		b.unqueue(name, f.Key)
		b.put(f.Key, f)
	default:
		b.queue(name, f.Key)
	}
}

// release takes a Service off a key; the next in line gets it.
func (b *builder) release(name model.Name, k plan.Key) {
	b.unqueue(name, k)
	held := b.plan.Frontends[k]
	if held == nil || held.Owner.Service != name {
		return
	}
	var next *plan.Frontend
	if line := b.rivals[k]; len(line) > 0 {
		next = find(b.wanted[line[0]].frontends, k)
		b.unqueue(line[0], k)
	}
	b.put(k, next)
}

func (b *builder) put(k plan.Key, f *plan.Frontend) {
	if _, noted := b.before[k]; !noted {
		b.before[k] = b.plan.Frontends[k]
	}
	if f == nil {
		delete(b.plan.Frontends, k)
	} else {
		b.plan.Frontends[k] = f
	}
}

func (b *builder) queue(name model.Name, k plan.Key) {
	line := b.rivals[k]
	if slices.Contains(line, name) {
		return
	}
	b.waiting++
	b.newly[k] = true
	line = append(slices.Clone(line), name)
	slices.SortFunc(line, func(x, y model.Name) int {
		if b.deserves(k, x, y) {
			return -1
		}
		return 1
	})
	b.rivals[k] = line
}

func (b *builder) unqueue(name model.Name, k plan.Key) {
	line := b.rivals[k]
	if i := slices.Index(line, name); i >= 0 {
		b.waiting--
		if line = slices.Delete(slices.Clone(line), i, i+1); len(line) == 0 {
			delete(b.rivals, k)
		} else {
			b.rivals[k] = line
		}
	}
}

// deserves tells whether x has the better claim to a key of the two.
func (b *builder) deserves(k plan.Key, x, y model.Name) bool {
	cx, cy := b.wanted[x], b.wanted[y]
	return cmp.Or(
		cmp.Compare(precedence(find(cx.frontends, k)), precedence(find(cy.frontends, k))),
		cmp.Compare(cx.created, cy.created), x.Compare(y)) < 0
}

// precedence orders kinds, the strongest claim first.
func precedence(f *plan.Frontend) int {
	if f == nil {
		return int(plan.NodePort) + 1
	}
	return slices.Index([]plan.Kind{plan.ClusterIP, plan.NodePort, plan.LoadBalancer, plan.ExternalIP}, f.Kind)
}

func hasKey(fs []*plan.Frontend, k plan.Key) bool { return find(fs, k) != nil }

func find(fs []*plan.Frontend, k plan.Key) *plan.Frontend {
	for _, f := range fs {
		if f.Key == k {
			return f
		}
	}
	return nil
}
