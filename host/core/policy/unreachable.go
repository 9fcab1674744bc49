package policy

import "slices"

// Unreachable is a binding that applies to no Service on any node.
type Unreachable struct {
	Index int // in Set.Bindings
	// By are the earlier bindings one of which applies instead, whatever the Service, sorted. Nil: no labels match the selector.
	By []int
}

// maxCompared bounds how often Unreachable compares two bindings: about a second.
const maxCompared = 1_000_000

// Unreachable returns the bindings that can never apply: in each of their namespaces, all Services that they select are selected
// by one earlier binding that applies on every node and whatever the guards of policies do. What it returns never applies. It
// does not find bindings whose Services are selected only by several earlier ones together, nor those that labels make
// unreachable which no Service has. Beyond a million comparisons, which complete reports, further bindings are not looked at.
func (s *Set) Unreachable() (out []Unreachable, complete bool) {
	type earlier struct {
		index      int
		namespaces map[string]bool // nil: all
		sets       map[string]valueSet
	}
	var before []earlier // that may hide others
	compared := 0
	for j := range s.Bindings {
		b := &s.Bindings[j]
		sets, ok := b.Selector.sets()
		if !ok {
			out = append(out, Unreachable{Index: j})
			continue
		}
		hiddenIn := func(namespace string) (by int, ok bool) {
			for _, e := range before {
				compared++
				if e.namespaces != nil && !e.namespaces[namespace] {
					continue
				}
				if a := &s.Bindings[e.index]; s.guarded(a.Policy) && a.Policy != b.Policy {
					continue // it is passed over when its guard has fallen back
				}
				if implies(sets, e.sets) {
					return e.index, true
				}
			}
			return 0, false
		}
		namespaces := b.Namespaces
		if len(namespaces) == 0 {
			namespaces = []string{""} // all, which only a binding without namespaces hides
		}
		var by []int
		hidden := true
		for _, namespace := range namespaces {
			if compared > maxCompared {
				return out, false
			}
			i, ok := hiddenIn(namespace)
			if hidden = ok; !ok {
				break
			}
			by = append(by, i)
		}
		if hidden {
			slices.Sort(by)
			out = append(out, Unreachable{Index: j, By: slices.Compact(by)})
			continue
		}
		if b.Nodes.any() {
			continue
		}
		e := earlier{index: j, sets: sets}
		for _, namespace := range b.Namespaces {
			if e.namespaces == nil {
				e.namespaces = map[string]bool{}
			}
			e.namespaces[namespace] = true
		}
		before = append(before, e)
	}
	return out, true
}

// guarded reports whether a policy has a guard.
func (s *Set) guarded(name string) bool {
	p := s.Policies[name]
	return p != nil && p.Guard.FailedPercent > 0
}
