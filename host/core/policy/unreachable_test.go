package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// universe are all labels with two keys and three values, one of which ("other") no selector names, in three namespaces, one of
// which no binding names.
func universe() (out []*model.Service) {
	states := []string{"absent", "a", "b", "other"}
	for _, namespace := range []string{"x", "y", "unnamed"} {
		for _, k := range states {
			for _, l := range states {
				svc := &model.Service{Name: model.Name{Namespace: namespace, Name: k + "-" + l}, Labels: map[string]string{}}
				for key, value := range map[string]string{"k": k, "l": l} {
					if value != "absent" {
						svc.Labels[key] = value
					}
				}
				out = append(out, svc)
			}
		}
	}
	return out
}

func randomSelector(r *rand.Rand) (s Selector) {
	for range r.IntN(3) {
		q := Requirement{Key: []string{"k", "l"}[r.IntN(2)], Op: Op(r.IntN(4))}
		if q.Op == In || q.Op == NotIn {
			q.Values = [][]string{{"a"}, {"b"}, {"a", "b"}, {"b", "a", "b"}}[r.IntN(4)]
		}
		s = append(s, q)
	}
	return s
}

// reachable reports, by brute force, whether a binding applies to a Service of the universe, whatever nodes and guards do.
func reachable(set *Set, j int, all []*model.Service) bool {
	var conditional []int // bindings that may apply or not
	for i := range j {
		if b := &set.Bindings[i]; b.Nodes.any() || set.guarded(b.Policy) && b.Policy != set.Bindings[j].Policy {
			conditional = append(conditional, i)
		}
	}
	for subset := range 1 << len(conditional) {
		for _, svc := range all {
			first := slices.IndexFunc(set.Bindings, func(b Binding) bool { return b.Selects(svc) })
			for first >= 0 && first < j {
				at := slices.Index(conditional, first)
				if at < 0 || subset&(1<<at) != 0 {
					break // it applies
				}
				next := slices.IndexFunc(set.Bindings[first+1:], func(b Binding) bool { return b.Selects(svc) })
				if next < 0 {
					first = -1
				} else {
					first += 1 + next
				}
			}
			if first == j {
				return true
			}
		}
	}
	return false
}

// hiddenByOneInEachNamespace reports, by brute force, whether in each of its namespaces one earlier binding that always applies
// selects everything that a binding does.
func hiddenByOneInEachNamespace(set *Set, j int, all []*model.Service) bool {
	b := set.Bindings[j]
	for _, namespace := range []string{"x", "y", "unnamed"} {
		var mine []*model.Service
		for _, svc := range all {
			if svc.Name.Namespace == namespace && b.Selects(svc) {
				mine = append(mine, svc)
			}
		}
		hides := func(i int) bool {
			a := set.Bindings[i]
			return !a.Nodes.any() && (!set.guarded(a.Policy) || a.Policy == b.Policy) &&
				!slices.ContainsFunc(mine, func(svc *model.Service) bool { return !a.Selects(svc) })
		}
		if len(mine) > 0 && !slices.ContainsFunc(slices.Collect(upTo(j)), hides) {
			return false
		}
	}
	return true
}

func upTo(n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// TestUnreachableBindingsNeverApply compares with brute force over all labels: what is reported never applies, and everything
// that one earlier binding hides in each namespace is reported. What is missed is counted: bindings that several earlier ones
// hide together.
func TestUnreachableBindingsNeverApply(t *testing.T) {
	all := universe()
	lists := 20_000
	if testing.Short() {
		lists = 3000
	}
	reported, missed := 0, 0
	for seed := range uint64(lists) {
		r := rand.New(rand.NewPCG(seed, 2))
		set := &Set{Policies: map[string]*Policy{"p": {Name: "p"}, "q": {Name: "q"}, "g": {Name: "g", Guard: Guard{FailedPercent: 2}}}}
		for range 2 + r.IntN(3) {
			b := Binding{Selector: randomSelector(r), Policy: []string{"p", "q", "g"}[r.IntN(3)]}
			b.Namespaces = [][]string{nil, {"x"}, {"y"}, {"x", "y"}, {"y", "x", "y"}}[r.IntN(5)]
			if r.IntN(4) == 0 {
				b.Nodes.Permille = 1 + r.IntN(1000)
			}
			set.Bindings = append(set.Bindings, b)
		}
		found, complete := set.Unreachable()
		for j := range set.Bindings {
			at := slices.IndexFunc(found, func(u Unreachable) bool { return u.Index == j })
			can := reachable(set, j, all)
			if at >= 0 != hiddenByOneInEachNamespace(set, j, all) || at >= 0 && can || !complete {
				t.Fatalf("seed %d: binding %d: reported %t, reachable %t\n%+v", seed, j, at >= 0, can, set.Bindings)
			}
			switch {
			case at >= 0:
				reported++
				if slices.ContainsFunc(found[at].By, func(i int) bool { return i >= j }) {
					t.Fatalf("seed %d: %+v", seed, found[at])
				}
			case !can:
				missed++
			}
		}
	}
	t.Logf("%d bindings reported; %d that several earlier ones hide together are not", reported, missed)
	if reported == 0 || missed > reported/10 {
		t.Errorf("%d reported, %d missed", reported, missed)
	}
}

// TestWhatUnreachableDoesNotFind lists what is not reported although it never applies, and why the others are.
func TestWhatUnreachableDoesNotFind(t *testing.T) {
	in := func(key string, values ...string) Requirement { return Requirement{Key: key, Op: In, Values: values} }
	has, hasNot := Requirement{Key: "k", Op: Exists}, Requirement{Key: "k", Op: DoesNotExist}
	notA := Requirement{Key: "k", Op: NotIn, Values: []string{"a"}}
	for name, c := range map[string]struct {
		bindings []Binding
		want     string // indexes, and what hides them
	}{
		"the same twice":                   {[]Binding{{Selector: Selector{in("k", "a")}}, {Selector: Selector{in("k", "a")}}}, "[{1 [0]}]"},
		"fewer namespaces":                 {[]Binding{{Namespaces: []string{"x", "y"}}, {Namespaces: []string{"y"}, Selector: Selector{has}}}, "[{1 [0]}]"},
		"namespaces of two earlier":        {[]Binding{{Namespaces: []string{"x"}}, {Namespaces: []string{"y"}}, {Namespaces: []string{"y", "x"}}}, "[{2 [0 1]}]"},
		"every namespace":                  {[]Binding{{Namespaces: []string{"x"}}, {Selector: Selector{has}}}, "[]"},
		"some of the nodes":                {[]Binding{{Nodes: Nodes{Permille: 1000}}, {Selector: Selector{has}}}, "[]"},
		"hidden on some of the nodes":      {[]Binding{{Selector: Selector{has}}, {Selector: Selector{in("k", "a")}, Nodes: Nodes{Permille: 5}}}, "[{1 [0]}]"},
		"a guard":                          {[]Binding{{Policy: "g"}, {Policy: "p"}}, "[]"},
		"the same policy with a guard":     {[]Binding{{Policy: "g"}, {Policy: "g"}}, "[{1 [0]}]"},
		"a contradiction":                  {[]Binding{{Selector: Selector{in("k", "a"), in("k", "b")}}, {Selector: Selector{hasNot, in("k", "a")}}}, "[{0 []} {1 []}]"},
		"fewer values":                     {[]Binding{{Selector: Selector{in("k", "a", "b")}}, {Selector: Selector{in("k", "b"), in("l", "c")}}}, "[{1 [0]}]"},
		"not found: values of two earlier": {[]Binding{{Selector: Selector{in("k", "a")}}, {Selector: Selector{in("k", "b")}}, {Selector: Selector{in("k", "a", "b")}}}, "[]"},
		"not found: with and without":      {[]Binding{{Selector: Selector{has}}, {Selector: Selector{hasNot}}, {}}, "[]"},
		"not found: one value and others":  {[]Binding{{Selector: Selector{in("k", "a")}}, {Selector: Selector{notA}}, {Selector: Selector{in("l", "c")}}}, "[]"},
	} {
		set := &Set{Policies: map[string]*Policy{"p": {}, "g": {Guard: Guard{FailedPercent: 2}}}, Bindings: c.bindings}
		if got, _ := set.Unreachable(); fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func TestUnreachableIsBounded(t *testing.T) {
	set := &Set{Bindings: make([]Binding, 20_000)}
	for i := range set.Bindings {
		set.Bindings[i].Selector = Selector{{Key: "k", Op: In, Values: []string{fmt.Sprint(i)}}}
	}
	if found, complete := set.Unreachable(); complete || len(found) > 0 {
		t.Errorf("%d found, complete %t", len(found), complete)
	}
}
