package kube

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// parcel is what has become of an API object.
type parcel[T any] struct {
	name     model.Name
	value    *T // nil: not to be proxied, or nothing usable in it
	problems []source.Problem
}

// faulty tells whether something in the object could not be used.
func (p *parcel[T]) faulty() bool {
	for i := range p.problems {
		if !p.problems[i].Warning {
			return true
		}
	}
	return false
}

// kind is what a store needs to know of a kind of object.
type kind[T any] struct {
	title   string // the Kind
	example any    // an empty API object
	convert func(s *strings, object any) (*parcel[T], error)
	same    func(a, b *T) bool
	change  func(model.Name, *T) model.Change
}

// store is where a reflector puts the objects of a kind. It remembers of each the value that was emitted last, and no
// API object. The reflector is the only one that writes, from one goroutine.
type store[T any] struct {
	kind[T]
	source  *Source
	strings *strings

	mu     sync.Mutex // held while held changes; others may read
	held   map[model.Name]*T
	faulty map[model.Name]bool // of held: not all of the object could be used
	synced bool
}

var _ cache.TransformingStore = (*store[model.Service])(nil)

func newStore[T any](s *Source, k kind[T]) *store[T] {
	return &store[T]{kind: k, source: s, strings: newStrings(), held: map[model.Name]*T{}, faulty: map[model.Name]bool{}}
}

// get gives the value in force, nil for none.
func (s *store[T]) get(n model.Name) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[n]
}

// each calls do with the values in force.
func (s *store[T]) each(do func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.held {
		do(v)
	}
}

func (s *store[T]) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.held)
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
		p, err := s.parcel(object)
		if err == nil && p.value != nil {
			if old := s.held[p.name]; old != nil && s.same(old, p.value) {
				p.value = old // no second copy
			}
		}
		return p, err
	}
}

func (s *store[T]) parcel(object any) (*parcel[T], error) {
	if p, ok := object.(*parcel[T]); ok {
		return p, nil
	}
	return s.convert(s.strings, object)
}

// Add takes in a new object.
func (s *store[T]) Add(object any) error { return s.Update(object) }

// Update takes in an object as it is now.
func (s *store[T]) Update(object any) error {
	p, err := s.parcel(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, differs := s.take(p)
	s.mu.Unlock()
	if differs {
		s.source.put([]model.Change{c})
	}
	if c.Kind == model.NodeKind {
		s.source.wake()
	}
	return nil
}

// Delete takes in that an object is gone, or no longer selected.
func (s *store[T]) Delete(object any) error {
	p, err := s.parcel(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, differs := s.drop(p.name)
	s.mu.Unlock()
	if differs {
		s.source.put([]model.Change{c})
	}
	return nil
}

// Replace takes in everything that there is now: what is not in the list is gone.
func (s *store[T]) Replace(list []any, _ string) error {
	there := make(map[model.Name]bool, len(list))
	var changes []model.Change
	s.mu.Lock()
	for i, object := range list {
		p, err := s.parcel(object)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		list[i] = nil // the list is ours: what has been taken in may go
		there[p.name] = true
		if c, differs := s.take(p); differs {
			changes = append(changes, c)
		}
	}
	for n := range s.held {
		if !there[n] {
			c, _ := s.drop(n)
			changes = append(changes, c)
		}
	}
	s.mu.Unlock()
	for _, n := range s.source.book.names(s.title) {
		if !there[n] {
			s.source.book.set(s.title, n, nil)
		}
	}
	s.source.put(changes)
	s.setSynced()
	return nil
}

// Resync has nothing to do: what was handed on is not handed on again.
func (s *store[T]) Resync() error { return nil }

// forget takes everything out.
func (s *store[T]) forget() {
	_ = s.Replace(nil, "")
	s.mu.Lock()
	s.synced = false
	s.mu.Unlock()
}

// take works out what follows from an object as it is now. A bad update does not take away what was good.
func (s *store[T]) take(p *parcel[T]) (c model.Change, differs bool) {
	old, bad := s.held[p.name], p.faulty()
	if bad && old != nil && !s.faulty[p.name] {
		for i := range p.problems {
			if !p.problems[i].Warning {
				p.problems[i].Err = fmt.Errorf("%w: the object stays as it was", p.problems[i].Err)
			}
		}
		s.source.book.set(s.title, p.name, p.problems)
		return c, false
	}
	if p.value == nil {
		c, differs = s.drop(p.name)
		s.source.book.set(s.title, p.name, p.problems)
		return c, differs
	}
	s.source.book.set(s.title, p.name, p.problems)
	if bad {
		s.faulty[p.name] = true
	} else {
		delete(s.faulty, p.name)
	}
	if old != nil && s.same(old, p.value) {
		return c, false
	}
	s.held[p.name] = p.value
	return s.change(p.name, p.value), true
}

// drop works out what follows from an object that is gone.
func (s *store[T]) drop(n model.Name) (c model.Change, differs bool) {
	s.source.book.set(s.title, n, nil)
	delete(s.faulty, n)
	if s.held[n] == nil {
		return c, false
	}
	delete(s.held, n)
	return s.change(n, nil), true
}
