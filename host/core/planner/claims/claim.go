package claims

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
func (t *Table) compareClaims(x, y claim) int {
	t.Work.Comparisons++
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
func (t *Table) claim(c *claimant, f *plan.Frontend) {
	q := t.queues[f.Key]
	if q == nil {
		current := t.plan.Frontends[f.Key]
		if current == nil && t.addrs.allowed(f) {
			t.put(f.Key, f)
			return
		}
		q = t.queueOf(current)
		t.queues[f.Key] = q
	}
	t.conflicts++ // resolve corrects it if f gets the key
	q.insert(claim{f, c}, t.compareClaims)
	t.newlyLosing[c] = true
	t.resolve(f.Key)
}

// queueOf returns a queue of the claim whose frontend is in the plan; nil: none.
func (t *Table) queueOf(current *plan.Frontend) *claimQueue {
	q := &claimQueue{}
	if current != nil {
		q.insert(claim{current, t.services[current.Owner.Service]}, t.compareClaims)
	}
	return q
}

// release removes a frontend that a Service wanted.
func (t *Table) release(c *claimant, f *plan.Frontend) {
	q := t.queues[f.Key]
	if q == nil {
		t.put(f.Key, nil)
		return
	}
	if t.plan.Frontends[f.Key] == f {
		t.put(f.Key, nil)
	} else {
		t.conflicts--
	}
	q.remove(claim{f, c}, t.compareClaims)
	t.resolve(f.Key)
}

// replace replaces a frontend that a Service wants by one of the same key and kind.
func (t *Table) replace(c *claimant, old, f *plan.Frontend) {
	if q := t.queues[f.Key]; q != nil {
		list, at, _ := q.find(claim{old, c}, t.compareClaims)
		q.lists[list][at].frontend = f
	}
	if t.plan.Frontends[f.Key] == old {
		t.put(f.Key, f)
	}
}

// resolve decides who gets a key. There must be a queue of it, or a frontend in the plan.
func (t *Table) resolve(k plan.Key) {
	q := t.queues[k]
	current := t.plan.Frontends[k]
	if q == nil {
		if current == nil || t.addrs.allowed(current) {
			return
		}
		q = t.queueOf(current)
	}
	var first *plan.Frontend
	if q.n > 0 && t.addrs.allowed(q.lists[0][0].frontend) {
		first = q.lists[0][0].frontend
	}
	if first != current {
		if current != nil {
			t.conflicts++
			t.newlyLosing[t.services[current.Owner.Service]] = true
		}
		if first != nil {
			t.conflicts--
		}
		t.put(k, first)
	}
	if q.n == 0 || q.n == 1 && first != nil {
		delete(t.queues, k)
	} else {
		t.queues[k] = q
	}
}

// Check returns an error if a key has a queue although all its claims are in the plan.
func (t *Table) Check() error {
	for k, q := range t.queues {
		if q.n == 0 || q.n == 1 && t.plan.Frontends[k] != nil {
			return fmt.Errorf("%s has a queue of %d without a conflict", k, q.n)
		}
	}
	return nil
}

// Conflicts returns the frontends that a Service wants and does not get, sorted.
func (t *Table) Conflicts() []plan.Degradation {
	var out []plan.Degradation
	for k, q := range t.queues {
		for c := range q.all() {
			if c.frontend != t.plan.Frontends[k] {
				out = append(out, t.conflict(c))
			}
		}
	}
	slices.SortFunc(out, func(x, y plan.Degradation) int {
		return cmp.Or(x.Frontend.Compare(y.Frontend), x.Owner.Compare(y.Owner))
	})
	return out
}

// ConflictsOf returns up to limit conflicts of a Service and their number.
func (t *Table) ConflictsOf(name model.Name, limit int) (out []plan.Degradation, n int) {
	c := t.services[name]
	if c == nil {
		return nil, 0
	}
	for _, f := range c.frontends {
		if t.plan.Frontends[f.Key] == f {
			continue
		}
		if n++; n <= limit {
			out = append(out, t.conflict(claim{f, c}))
		}
	}
	return out, n
}

// NewConflicts returns a conflict of each Service that has new ones since the last call, sorted by Service.
func (t *Table) NewConflicts() []plan.Degradation {
	if len(t.newlyLosing) == 0 {
		return nil
	}
	var out []plan.Degradation
	later := map[*claimant]bool{}
	for c := range t.newlyLosing {
		if c.partial {
			later[c] = true
			continue
		}
		list, n := t.ConflictsOf(c.svc.Name, 1)
		if n > 1 {
			list[0].Why += fmt.Sprintf("; and %d more frontends", n-1)
		}
		out = append(out, list...)
	}
	t.newlyLosing = later
	slices.SortFunc(out, func(x, y plan.Degradation) int { return x.Owner.Compare(y.Owner) })
	return out
}

// conflict describes a claim that is not in the plan.
func (t *Table) conflict(c claim) plan.Degradation {
	f := c.frontend
	var why string
	switch has := t.plan.Frontends[f.Key]; {
	case t.addrs.foreign(f) != "":
		why = "the address belongs to " + t.addrs.foreign(f) + ": mode ipvs would add it to this node, which could no longer reach its owner"
	case t.addrs.reserved[f.Key] && f.Kind == plan.ExternalIP:
		why = "the API server listens there"
	case !t.addrs.allowed(f):
		owner := t.addrs.uses[f.Key.Addr][0]
		why = fmt.Sprintf("the address belongs to Service %s as its %s", owner.by.svc.Name, owner.kind)
	case has == nil:
		why = "it is about to be assigned"
	case has.Kind != f.Kind:
		why = fmt.Sprintf("Service %s has it as its %s", has.Owner, has.Kind)
	case c.by.svc.Created == t.services[has.Owner.Service].svc.Created:
		why = fmt.Sprintf("Service %s has it: none is older, and its name comes first", has.Owner)
	default:
		why = fmt.Sprintf("the older Service %s has it", has.Owner)
	}
	return plan.Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: f.Kind.String(), Got: "no frontend", Why: why}
}
