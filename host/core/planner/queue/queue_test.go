package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// queueOracle knows all reasons of each Service, and since when it has them, in operations.
type queueOracle struct {
	*testing.T
	q     Queue
	of    map[model.Name]*[classes]int // 0: it does not have the reason
	taken map[model.Name]bool
	state map[model.Name]*Place
	now   int
	waits map[string]*[classes]int // turns of others while a namespace waits
}

func (o *queueOracle) best(name model.Name) Class {
	if o.taken[name] {
		return None
	}
	return Class(slices.IndexFunc(append(slices.Clone(o.of[name][:]), 1), func(since int) bool { return since > 0 }))
}

// names returns the Services that wait with a class, sorted.
func (o *queueOracle) names(c Class) (out []model.Name) {
	for name := range o.of {
		if o.best(name) == c {
			out = append(out, name)
		}
	}
	slices.SortFunc(out, model.Name.Compare)
	return out
}

// check compares each Service's only place, and the numbers of all.
func (o *queueOracle) check(what string) {
	o.Helper()
	places := map[*Place]int{}
	for _, ns := range o.q.namespaces {
		for c, l := range ns.lists {
			for p := l.first; p != nil; p = p.next {
				if places[p]++; p.list != Class(c) || p.in != ns || p.next != nil && p.next.prev != p || p.next == nil && l.last != p {
					o.Fatalf("%s: place of %s in list %d: %+v", what, p.Name, c, p)
				}
			}
		}
	}
	var n [classes]int
	for name := range o.of {
		p, best := o.state[name], o.best(name)
		if got := o.q.reason(p); got != best || (places[p] == 1) == o.taken[name] || places[p] > 1 {
			o.Fatalf("%s: %s has Class %d and %d places, want Class %d of %v", what, name, got, places[p], best, o.of[name])
		}
		if best != None {
			n[best]++
		}
	}
	if n != o.q.n {
		o.Fatalf("%s: %v wait, want %v", what, o.q.n, n)
	}
}

// take takes a Service of a class, which must be one that may be next.
func (o *queueOracle) take(c Class, namespaces int) model.Name {
	waiting := o.names(c)
	p := o.q.Take(c)
	if p == nil || !slices.Contains(waiting, p.Name) {
		o.Fatalf("took %v, want one of %v", p, waiting)
	}
	mine := o.of[p.Name][c]
	for _, name := range waiting {
		switch {
		case name.Namespace != p.Name.Namespace:
		case c != Swept && o.of[name][c] < mine:
			o.Fatalf("Class %d: took %s before %s", c, p.Name, name)
		}
	}
	others := map[string]bool{}
	for _, name := range waiting {
		others[name.Namespace] = true
	}
	for ns, w := range o.waits {
		if w[c]++; ns == p.Name.Namespace || !others[ns] {
			w[c] = 0
		} else if w[c] > 2*namespaces {
			o.Fatalf("Class %d: namespace %s waits for %d turns of others", c, ns, w[c])
		}
	}
	o.taken[p.Name] = true
	return p.Name
}

// TestQueueOfServices compares random operations with a model: a Service has one place, for the best of its reasons, none is
// lost, and namespaces take turns in each class.
func TestQueueOfServices(t *testing.T) {
	const namespaces, services, operations = 5, 12, 1500
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 5))
		o := &queueOracle{T: t, of: map[model.Name]*[classes]int{}, taken: map[model.Name]bool{}, state: map[model.Name]*Place{},
			waits: map[string]*[classes]int{}}
		for i := range namespaces {
			o.waits[fmt.Sprint(i)] = &[classes]int{}
		}
		push := func(name model.Name, c Class) {
			o.q.Push(o.state[name], c)
			if o.of[name][c] == 0 {
				o.of[name][c] = o.now
			}
		}
		var rounds []model.Name // of Services that are taken
		for o.now = 1; o.now < operations; o.now++ {
			name := model.Name{Namespace: fmt.Sprint(min(r.IntN(namespaces), r.IntN(namespaces))), Name: fmt.Sprint(r.IntN(services))}
			what := fmt.Sprintf("seed %d, operation %d", seed, o.now)
			switch op := r.IntN(20); {
			case op == 0:
				o.q.Begin(true)
				for _, of := range o.of {
					if of[Swept] == 0 {
						of[Swept] = o.now
					}
				}
			case op < 10:
				c := []Class{Changed, Due, ShadowDue}[r.IntN(3)]
				if o.of[name] == nil {
					o.of[name], o.state[name] = &[classes]int{}, &Place{}
					o.q.Enter(o.state[name], name)
					c = Changed
				}
				if !o.taken[name] {
					push(name, c)
				}
			default:
				c := Class(r.IntN(int(classes)))
				if c == ShadowDue && len(o.names(Swept)) > 0 {
					c = Swept
				}
				if len(o.names(c)) == 0 {
					if p := o.q.Take(c); p != nil {
						t.Fatalf("%s: Class %d: took %s although None waits", what, c, p.Name)
					}
					continue
				}
				name := o.take(c, namespaces)
				o.check(what + ": taken")
				*o.of[name] = [classes]int{} // planning a Service is for all reasons
				o.state[name].sweep = o.q.sweep
				rounds = append(rounds, name)
			}
			for len(rounds) > 0 && r.IntN(3) == 0 { // others go on while sweeps begin
				i := r.IntN(len(rounds))
				name, p := rounds[i], o.state[rounds[i]]
				switch rounds = slices.Delete(rounds, i, i+1); r.IntN(6) {
				case 0:
					push(name, Due)
				case 1:
					o.q.Drop(p)
					delete(o.of, name)
				default:
					o.q.Settle(p)
				}
				delete(o.taken, name)
			}
			o.check(what)
		}
		for _, name := range rounds {
			o.q.Settle(o.state[name])
			delete(o.taken, name)
		}
		for c := range classes {
			for len(o.names(c)) > 0 {
				name := o.take(c, namespaces)
				*o.of[name] = [classes]int{}
				o.state[name].sweep = o.q.sweep
				o.q.Settle(o.state[name])
				delete(o.taken, name)
			}
		}
		if o.check("end"); o.q.Len() != 0 {
			t.Fatalf("seed %d: %d wait at the end", seed, o.q.Len())
		}
	}
}

// TestSweepBeginsWithoutVisitingServices: beginning one costs no more with many Services, and what waits goes on where it was.
func TestSweepBeginsWithoutVisitingServices(t *testing.T) {
	var q Queue
	for i := range 100 {
		s := &Place{}
		q.Enter(s, model.Name{Namespace: "a", Name: fmt.Sprint(i)})
		q.Settle(s)
	}
	seen := map[string]bool{}
	for range 100 {
		q.Begin(true)
		if q.n[Swept] != 100 || len(q.turns[Swept]) > 2 {
			t.Fatalf("%d Services, %d turns", q.n[Swept], len(q.turns[Swept]))
		}
		p := q.Take(Swept)
		seen[p.Name.Name] = true
		p.sweep = q.sweep
		q.Settle(p)
	}
	if len(seen) != 100 {
		t.Errorf("%d of 100 Services had a turn in as many sweeps", len(seen))
	}
}
