package kube

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// converted is what has become of an API object.
type converted[T any] struct {
	name     model.Name
	value    *T // nil: not to be proxied, or nothing usable in it
	problems []source.Problem
}

// hasErrors tells whether something in the object could not be used.
func (p *converted[T]) hasErrors() bool {
	for i := range p.problems {
		if !p.problems[i].Warning {
			return true
		}
	}
	return false
}

// kind is what a store needs to know of a kind of object.
type kind[T any] struct {
	name      string // the Kind
	prototype any    // an empty API object
	convert   func(s *interner, object any) (*converted[T], error)
	same      func(a, b *T) bool
	change    func(model.Name, *T) model.Change
}

// store is where a reflector puts the objects of a kind. It remembers of each the value that was emitted last, and no
// API object. The reflector is the only one that writes, from one goroutine.
type store[T any] struct {
	kind[T]
	source   *Source
	interner *interner

	mu         sync.Mutex // held while held changes; others may read
	values     map[model.Name]*T
	withErrors map[model.Name]bool // of held: not all of the object could be used
	synced     bool
}

var _ cache.TransformingStore = (*store[model.Service])(nil)

func newStore[T any](s *Source, k kind[T]) *store[T] {
	return &store[T]{kind: k, source: s, interner: newInterner(), values: map[model.Name]*T{}, withErrors: map[model.Name]bool{}}
}

// get gives the value in force, nil for none.
func (s *store[T]) get(n model.Name) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[n]
}

// forEach calls do with the values in force.
func (s *store[T]) forEach(do func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.values {
		do(v)
	}
}

func (s *store[T]) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// isSynced tells whether a whole list has come, or is known not to come.
func (s *store[T]) isSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

func (s *store[T]) setSynced() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.source.wake()
}

// Transformer has the first state that a server streams kept as values, not as API objects.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		p, err := s.asConverted(object)
		if err == nil && p.value != nil {
			if old := s.values[p.name]; old != nil && s.same(old, p.value) {
				p.value = old // no second copy
			}
		}
		return p, err
	}
}

func (s *store[T]) asConverted(object any) (*converted[T], error) {
	if p, ok := object.(*converted[T]); ok {
		return p, nil
	}
	return s.convert(s.interner, object)
}

// Add takes in a new object.
func (s *store[T]) Add(object any) error { return s.Update(object) }

// Update takes in an object as it is now.
func (s *store[T]) Update(object any) error {
	p, err := s.asConverted(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, differs := s.apply(p)
	s.mu.Unlock()
	if differs {
		s.source.publish([]model.Change{c})
	}
	if c.Kind == model.NodeKind {
		s.source.wake()
	}
	return nil
}

// Delete takes in that an object is gone, or no longer selected.
func (s *store[T]) Delete(object any) error {
	p, err := s.asConverted(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, differs := s.remove(p.name)
	s.mu.Unlock()
	if differs {
		s.source.publish([]model.Change{c})
	}
	return nil
}

// Replace takes in everything that there is now: what is not in the list is gone.
func (s *store[T]) Replace(list []any, _ string) error {
	there := make(map[model.Name]bool, len(list))
	var changes []model.Change
	s.mu.Lock()
	for i, object := range list {
		p, err := s.asConverted(object)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		list[i] = nil // the list is ours: what has been taken in may go
		there[p.name] = true
		if c, differs := s.apply(p); differs {
			changes = append(changes, c)
		}
	}
	for n := range s.values {
		if !there[n] {
			c, _ := s.remove(n)
			changes = append(changes, c)
		}
	}
	s.mu.Unlock()
	for _, n := range s.source.problems.objectsWithProblems(s.name) {
		if !there[n] {
			s.source.problems.set(s.name, n, nil)
		}
	}
	s.source.publish(changes)
	s.setSynced()
	return nil
}

// Resync has nothing to do: what was handed on is not handed on again.
func (s *store[T]) Resync() error { return nil }

// reset takes everything out.
func (s *store[T]) reset() {
	_ = s.Replace(nil, "")
	s.mu.Lock()
	s.synced = false
	s.mu.Unlock()
}

// apply works out what follows from an object as it is now. A bad update does not take away what was good.
func (s *store[T]) apply(p *converted[T]) (c model.Change, differs bool) {
	old, bad := s.values[p.name], p.hasErrors()
	if bad && old != nil && !s.withErrors[p.name] {
		for i := range p.problems {
			if !p.problems[i].Warning {
				p.problems[i].Err = fmt.Errorf("%w: the object stays as it was", p.problems[i].Err)
			}
		}
		s.source.problems.set(s.name, p.name, p.problems)
		return c, false
	}
	if p.value == nil {
		c, differs = s.remove(p.name)
		s.source.problems.set(s.name, p.name, p.problems)
		return c, differs
	}
	s.source.problems.set(s.name, p.name, p.problems)
	if bad {
		s.withErrors[p.name] = true
	} else {
		delete(s.withErrors, p.name)
	}
	if old != nil && s.same(old, p.value) {
		return c, false
	}
	s.values[p.name] = p.value
	return s.change(p.name, p.value), true
}

// remove works out what follows from an object that is gone.
func (s *store[T]) remove(n model.Name) (c model.Change, differs bool) {
	s.source.problems.set(s.name, n, nil)
	delete(s.withErrors, n)
	if s.values[n] == nil {
		return c, false
	}
	delete(s.values, n)
	return s.change(n, nil), true
}
