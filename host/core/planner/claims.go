package planner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// claim is a frontend that a Service wants. Of the claims of a key, the first one is in the plan, unless its address belongs
// to another Service: see addrUse. The order is by kind (ClusterIP, NodePort, load balancer address, external IP), then the
// older Service, by creation time, then by name.
type claim struct {
	frontend *plan.Frontend
	by       *claimant
}

// compareClaims returns the order of two claims of the same key.
func (b *builder) compareClaims(x, y claim) int {
	b.work.comparisons++
	return cmp.Or(cmp.Compare(rankOf(x.frontend.Kind), rankOf(y.frontend.Kind)), compareAge(x.by, y.by))
}

func compareAge(x, y *claimant) int {
	return cmp.Or(cmp.Compare(x.svc.Created, y.svc.Created), x.svc.Name.Compare(y.svc.Name))
}

// rankOf returns the precedence of a kind, 0 first.
func rankOf(k plan.Kind) int {
	return [...]int{plan.ClusterIP: 0, plan.NodePort: 1, plan.LoadBalancer: 2, plan.ExternalIP: 3}[k]
}

// claim adds a frontend that a Service wants.
func (b *builder) claim(c *claimant, f *plan.Frontend) {
	q := b.queues[f.Key]
	if q == nil {
		current := b.plan.Frontends[f.Key]
		if current == nil && b.allowed(f) {
			b.put(f.Key, f)
			return
		}
		q = b.queueOf(current)
		b.queues[f.Key] = q
	}
	b.conflicts++ // resolve corrects it if f gets the key
	q.insert(claim{f, c}, b.compareClaims)
	b.newlyLosing[c] = true
	b.resolve(f.Key)
}

// queueOf returns a queue of the claim whose frontend is in the plan; nil: none.
func (b *builder) queueOf(current *plan.Frontend) *claimQueue {
	q := &claimQueue{}
	if current != nil {
		q.insert(claim{current, b.services[current.Owner.Service]}, b.compareClaims)
	}
	return q
}

// release removes a frontend that a Service wanted.
func (b *builder) release(c *claimant, f *plan.Frontend) {
	q := b.queues[f.Key]
	if q == nil {
		b.put(f.Key, nil)
		return
	}
	if b.plan.Frontends[f.Key] == f {
		b.put(f.Key, nil)
	} else {
		b.conflicts--
	}
	q.remove(claim{f, c}, b.compareClaims)
	b.resolve(f.Key)
}

// replace replaces a frontend that a Service wants by one of the same key and kind.
func (b *builder) replace(c *claimant, old, f *plan.Frontend) {
	if q := b.queues[f.Key]; q != nil {
		list, at, _ := q.find(claim{old, c}, b.compareClaims)
		q.lists[list][at].frontend = f
	}
	if b.plan.Frontends[f.Key] == old {
		b.put(f.Key, f)
	}
}

// resolve decides who gets a key. There must be a queue of it, or a frontend in the plan.
func (b *builder) resolve(k plan.Key) {
	q := b.queues[k]
	current := b.plan.Frontends[k]
	if q == nil {
		if current == nil || b.allowed(current) {
			return
		}
		q = b.queueOf(current)
	}
	var first *plan.Frontend
	if q.n > 0 && b.allowed(q.lists[0][0].frontend) {
		first = q.lists[0][0].frontend
	}
	if first != current {
		if current != nil {
			b.conflicts++
			b.newlyLosing[b.services[current.Owner.Service]] = true
		}
		if first != nil {
			b.conflicts--
		}
		b.put(k, first)
	}
	if q.n == 0 || q.n == 1 && first != nil {
		delete(b.queues, k)
	} else {
		b.queues[k] = q
	}
}

// Conflicts returns the frontends that a Service wants and does not get, sorted.
func (b *builder) Conflicts() []plan.Degradation {
	var out []plan.Degradation
	for k, q := range b.queues {
		for c := range q.all() {
			if c.frontend != b.plan.Frontends[k] {
				out = append(out, b.conflict(c))
			}
		}
	}
	slices.SortFunc(out, func(x, y plan.Degradation) int {
		return cmp.Or(x.Frontend.Compare(y.Frontend), x.Owner.Compare(y.Owner))
	})
	return out
}

// ConflictsOf returns up to limit conflicts of a Service and their number.
func (b *builder) ConflictsOf(name model.Name, limit int) (out []plan.Degradation, n int) {
	c := b.services[name]
	if c == nil {
		return nil, 0
	}
	for _, f := range c.frontends {
		if b.plan.Frontends[f.Key] == f {
			continue
		}
		if n++; n <= limit {
			out = append(out, b.conflict(claim{f, c}))
		}
	}
	return out, n
}

// NewConflicts returns a conflict of each Service that has new ones since the last call, sorted by Service.
func (b *builder) NewConflicts() []plan.Degradation {
	if len(b.newlyLosing) == 0 {
		return nil
	}
	var out []plan.Degradation
	later := map[*claimant]bool{}
	for c := range b.newlyLosing {
		if c.partial {
			later[c] = true
			continue
		}
		list, n := b.ConflictsOf(c.svc.Name, 1)
		if n > 1 {
			list[0].Why += fmt.Sprintf("; and %d more frontends", n-1)
		}
		out = append(out, list...)
	}
	b.newlyLosing = later
	slices.SortFunc(out, func(x, y plan.Degradation) int { return x.Owner.Compare(y.Owner) })
	return out
}

// conflict describes a claim that is not in the plan.
func (b *builder) conflict(c claim) plan.Degradation {
	f := c.frontend
	var why string
	switch has := b.plan.Frontends[f.Key]; {
	case b.foreign(f) != "":
		why = "the address belongs to " + b.foreign(f) + ": mode ipvs would add it to this node, which could no longer reach its owner"
	case b.reserved[f.Key] && f.Kind == plan.ExternalIP:
		why = "the API server listens there"
	case !b.allowed(f):
		owner := b.addrs[f.Key.Addr][0]
		why = fmt.Sprintf("the address belongs to Service %s as its %s", owner.by.svc.Name, owner.kind)
	case has == nil:
		why = "it is about to be assigned"
	case has.Kind != f.Kind:
		why = fmt.Sprintf("Service %s has it as its %s", has.Owner, has.Kind)
	case c.by.svc.Created == b.services[has.Owner.Service].svc.Created:
		why = fmt.Sprintf("Service %s has it: none is older, and its name comes first", has.Owner)
	default:
		why = fmt.Sprintf("the older Service %s has it", has.Owner)
	}
	return plan.Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: f.Kind.String(), Got: "no frontend", Why: why}
}
