package planner

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
	q     queue
	of    map[model.Name]*[classes]int // 0: it does not have the reason
	taken map[model.Name]bool
	state map[model.Name]*serviceState
	now   int
	waits map[string]*[classes]int // turns of others while a namespace waits
}

func (o *queueOracle) best(name model.Name) class {
	if o.taken[name] {
		return none
	}
	return class(slices.IndexFunc(append(slices.Clone(o.of[name][:]), 1), func(since int) bool { return since > 0 }))
}

// names returns the Services that wait with a class, sorted.
func (o *queueOracle) names(c class) (out []model.Name) {
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
	places := map[*place]int{}
	for _, ns := range o.q.namespaces {
		for c, l := range ns.lists {
			for p := l.first; p != nil; p = p.next {
				if places[p]++; p.list != class(c) || p.in != ns || p.next != nil && p.next.prev != p || p.next == nil && l.last != p {
					o.Fatalf("%s: place of %s in list %d: %+v", what, p.name, c, p)
				}
			}
		}
	}
	var n [classes]int
	for name := range o.of {
		p, best := &o.state[name].place, o.best(name)
		if got := o.q.reason(p); got != best || places[p] != oneIf(!o.taken[name]) {
			o.Fatalf("%s: %s has class %d and %d places, want class %d of %v", what, name, got, places[p], best, o.of[name])
		}
		if best != none {
			n[best]++
		}
	}
	if n != o.q.n {
		o.Fatalf("%s: %v wait, want %v", what, o.q.n, n)
	}
}

// take takes a Service of a class, which must be one that may be next.
func (o *queueOracle) take(c class, namespaces int) model.Name {
	waiting := o.names(c)
	p := o.q.take(c)
	if p == nil || !slices.Contains(waiting, p.name) {
		o.Fatalf("took %v, want one of %v", p, waiting)
	}
	mine := o.of[p.name][c]
	for _, name := range waiting {
		switch {
		case name.Namespace != p.name.Namespace:
		case c != swept && o.of[name][c] < mine:
			o.Fatalf("class %d: took %s before %s", c, p.name, name)
		}
	}
	others := map[string]bool{}
	for _, name := range waiting {
		others[name.Namespace] = true
	}
	for ns, w := range o.waits {
		if w[c]++; ns == p.name.Namespace || !others[ns] {
			w[c] = 0
		} else if w[c] > 2*namespaces {
			o.Fatalf("class %d: namespace %s waits for %d turns of others", c, ns, w[c])
		}
	}
	o.taken[p.name] = true
	return p.name
}

// TestQueueOfServices compares random operations with a model: a Service has one place, for the best of its reasons, none is lost, and
// namespaces take turns in each class.
func TestQueueOfServices(t *testing.T) {
	const namespaces, services, operations = 5, 12, 1500
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 5))
		o := &queueOracle{T: t, of: map[model.Name]*[classes]int{}, taken: map[model.Name]bool{}, state: map[model.Name]*serviceState{},
			waits: map[string]*[classes]int{}}
		for i := range namespaces {
			o.waits[fmt.Sprint(i)] = &[classes]int{}
		}
		push := func(name model.Name, c class) {
			o.q.push(&o.state[name].place, c)
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
				o.q.begin(true)
				for _, of := range o.of {
					if of[swept] == 0 {
						of[swept] = o.now
					}
				}
			case op < 10:
				c := []class{changed, due, shadowDue}[r.IntN(3)]
				if o.of[name] == nil {
					o.of[name], o.state[name] = &[classes]int{}, &serviceState{}
					o.q.enter(o.state[name], name)
					c = changed
				}
				if !o.taken[name] {
					push(name, c)
				}
			default:
				c := class(r.IntN(int(classes)))
				if c == shadowDue && len(o.names(swept)) > 0 {
					c = swept
				}
				if len(o.names(c)) == 0 {
					if p := o.q.take(c); p != nil {
						t.Fatalf("%s: class %d: took %s although none waits", what, c, p.name)
					}
					continue
				}
				name := o.take(c, namespaces)
				o.check(what + ": taken")
				*o.of[name] = [classes]int{} // planning a Service is for all reasons
				o.state[name].place.sweep = o.q.sweep
				rounds = append(rounds, name)
			}
			for len(rounds) > 0 && r.IntN(3) == 0 { // others go on while sweeps begin
				i := r.IntN(len(rounds))
				name, p := rounds[i], &o.state[rounds[i]].place
				switch rounds = slices.Delete(rounds, i, i+1); r.IntN(6) {
				case 0:
					push(name, due)
				case 1:
					o.q.drop(p)
					delete(o.of, name)
				default:
					o.q.settle(p)
				}
				delete(o.taken, name)
			}
			o.check(what)
		}
		for _, name := range rounds {
			o.q.settle(&o.state[name].place)
			delete(o.taken, name)
		}
		for c := range classes {
			for len(o.names(c)) > 0 {
				name := o.take(c, namespaces)
				*o.of[name] = [classes]int{}
				o.state[name].place.sweep = o.q.sweep
				o.q.settle(&o.state[name].place)
				delete(o.taken, name)
			}
		}
		if o.check("end"); o.q.len() != 0 {
			t.Fatalf("seed %d: %d wait at the end", seed, o.q.len())
		}
	}
}

// TestSweepBeginsWithoutVisitingServices: beginning one costs no more with many Services, and what waits goes on where it was.
func TestSweepBeginsWithoutVisitingServices(t *testing.T) {
	var q queue
	for i := range 100 {
		s := &serviceState{}
		q.enter(s, model.Name{Namespace: "a", Name: fmt.Sprint(i)})
		q.settle(&s.place)
	}
	seen := map[string]bool{}
	for range 100 {
		q.begin(true)
		if q.n[swept] != 100 || len(q.turns[swept]) > 2 {
			t.Fatalf("%d Services, %d turns", q.n[swept], len(q.turns[swept]))
		}
		p := q.take(swept)
		seen[p.name.Name] = true
		p.sweep = q.sweep
		q.settle(p)
	}
	if len(seen) != 100 {
		t.Errorf("%d of 100 Services had a turn in as many sweeps", len(seen))
	}
}
