package policy

import "slices"

// valueSet is what the requirements of a selector on a key let the label be. There are more label values than any selector names,
// so the complement of a finite set is not empty and is in no finite set.
type valueSet struct {
	absent bool     // the label may be absent
	others bool     // the values are all except those listed
	values []string // distinct
}

func anyValue() valueSet { return valueSet{absent: true, others: true} }

// set returns what a requirement lets a label be.
func (r *Requirement) set() valueSet {
	values := slices.Compact(slices.Sorted(slices.Values(r.Values)))
	switch r.Op {
	case In:
		return valueSet{values: values}
	case NotIn:
		return valueSet{absent: true, others: true, values: values}
	case Exists:
		return valueSet{others: true}
	}
	return valueSet{absent: true}
}

func (s valueSet) has(value string) bool { return slices.Contains(s.values, value) != s.others }

func (s valueSet) empty() bool { return !s.absent && !s.others && len(s.values) == 0 }

// and returns the intersection.
func (s valueSet) and(t valueSet) valueSet {
	out := valueSet{absent: s.absent && t.absent, others: s.others && t.others}
	if out.others {
		out.values = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.values, t.values))))
		return out
	}
	if s.others {
		s, t = t, s
	}
	for _, v := range s.values { // finite
		if t.has(v) {
			out.values = append(out.values, v)
		}
	}
	return out
}

// in reports whether s is a subset of t.
func (s valueSet) in(t valueSet) bool {
	switch {
	case s.absent && !t.absent:
		return false
	case !s.others: // finite
		return !slices.ContainsFunc(s.values, func(v string) bool { return !t.has(v) })
	}
	return t.others && !slices.ContainsFunc(t.values, s.has)
}

// sets returns what a selector lets each of its labels be; ok is false if no labels match it.
func (s Selector) sets() (out map[string]valueSet, ok bool) {
	out = map[string]valueSet{}
	for i := range s {
		key := s[i].Key
		before, known := out[key]
		if !known {
			before = anyValue()
		}
		now := before.and(s[i].set())
		if now.empty() {
			return nil, false
		}
		out[key] = now
	}
	return out, true
}

// implies reports whether all labels that match one selector match another one: keys are independent, so that is so if it is for
// each key.
func implies(s, t map[string]valueSet) bool {
	for key, wanted := range t {
		given, known := s[key]
		if !known {
			given = anyValue()
		}
		if !given.in(wanted) {
			return false
		}
	}
	return true
}
