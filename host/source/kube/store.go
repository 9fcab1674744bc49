package kube

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// store receives a reflector's objects of one kind. It keeps the value that was emitted last for each, and no API
// object. Only the reflector writes to it, from one goroutine.
type store[T any] struct {
	kind[T]
	source   *Source
	interner *interner
	decode   func(raw []byte) (any, error) // of kind.decoder
	publish  func([]model.Change)          // Source.publish
	onSynced func()                        // Source.wake

	mu         sync.Mutex // guards writes, and reads by other goroutines than the reflector's
	values     map[model.Name]*T
	withErrors map[model.Name]bool // of values: some fields could not be used
	synced     bool
}

var _ cache.TransformingStore = (*store[model.Service])(nil)

func newStore[T any](s *Source, k kind[T]) *store[T] {
	t := &store[T]{kind: k, source: s, interner: newInterner(), publish: s.publish, onSynced: s.wake,
		values: map[model.Name]*T{}, withErrors: map[model.Name]bool{}}
	if k.decoder != nil {
		t.decode = k.decoder(t.interner)
	}
	return t
}

// get returns the current value, nil for none.
func (s *store[T]) get(n model.Name) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[n]
}

// forEach calls fn with each current value.
func (s *store[T]) forEach(fn func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.values {
		fn(v)
	}
}

func (s *store[T]) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}

// isSynced reports whether a complete list was received, or the server does not have the resource.
func (s *store[T]) isSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

func (s *store[T]) setSynced() {
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.onSynced()
}

// Transformer converts objects as they are streamed, so that a streamed list is kept in memory as values, not as API objects.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.listed(object) }
}

// readItem decodes and converts an item of a list.
func (s *store[T]) readItem(raw []byte) (runtime.Object, error) {
	o, err := s.decode(raw)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", s.name, err)
	}
	return s.listed(o)
}

// listed converts an object of a list that is not complete yet.
func (s *store[T]) listed(object any) (*converted[T], error) {
	p, err := s.asConverted(object)
	if err == nil && p.value != nil {
		s.narrowed(p)
		if old := s.get(p.name); old != nil && s.same(old, p.value) {
			p.value = old // share the copy that was emitted
		}
	}
	return p, err
}

func (s *store[T]) asConverted(object any) (*converted[T], error) {
	if p, ok := object.(*converted[T]); ok {
		return p, nil
	}
	return s.convert(s.interner, object)
}

// Add implements cache.Store.
func (s *store[T]) Add(object any) error { return s.Update(object) }

// Update implements cache.Store: it publishes the object if its value has changed.
func (s *store[T]) Update(object any) error {
	p, err := s.asConverted(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, changed := s.apply(p)
	s.mu.Unlock()
	if changed {
		s.publish([]model.Change{c})
	}
	if c.Kind == model.NodeKind {
		s.source.wake()
	}
	return nil
}

// Delete implements cache.Store. Objects that the selectors no longer match are deleted too.
func (s *store[T]) Delete(object any) error {
	p, err := s.asConverted(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	c, changed := s.remove(p.name)
	s.mu.Unlock()
	if changed {
		s.publish([]model.Change{c})
	}
	return nil
}

// Replace implements cache.Store: it publishes the differences to a complete list.
func (s *store[T]) Replace(list []any, _ string) error {
	present := make(map[model.Name]bool, len(list))
	var changes []model.Change
	s.mu.Lock()
	if len(s.values) == 0 { // the first list: grown one by one, map and changes would be copied often
		s.values, changes = make(map[model.Name]*T, len(list)), make([]model.Change, 0, len(list))
	}
	for i, object := range list {
		p, err := s.asConverted(object)
		if err != nil {
			s.mu.Unlock()
			return err
		}
		list[i] = nil // free the object: the reflector does not use the list again
		present[p.name] = true
		if c, changed := s.apply(p); changed {
			changes = append(changes, c)
		}
	}
	for n := range s.values {
		if !present[n] {
			c, _ := s.remove(n)
			changes = append(changes, c)
		}
	}
	s.mu.Unlock()
	for _, n := range s.source.problems.objectsWithProblems(s.name) {
		if !present[n] {
			s.source.problems.set(s.name, n, nil)
		}
	}
	s.publish(changes)
	s.setSynced()
	return nil
}

// Resync implements cache.Store. There is nothing to do: published values are not published again.
func (s *store[T]) Resync() error { return nil }

// reset removes all objects.
func (s *store[T]) reset() {
	_ = s.Replace(nil, "")
	s.mu.Lock()
	s.synced = false
	s.mu.Unlock()
}

// narrowed narrows the value of an object.
func (s *store[T]) narrowed(p *converted[T]) {
	if s.narrow != nil && p.value != nil {
		p.value = s.narrow(p.value)
	}
}

// narrowAll narrows the current values again and returns the changes to publish. s.mu is locked.
func (s *store[T]) narrowAll() (changes []model.Change) {
	for n, old := range s.values {
		if v := s.narrow(old); v != old {
			s.values[n] = v
			changes = append(changes, s.change(n, v))
		}
	}
	return changes
}

// apply stores an object and returns the change to publish. An invalid update leaves the previous valid version.
func (s *store[T]) apply(p *converted[T]) (c model.Change, changed bool) {
	s.narrowed(p)
	old, bad := s.values[p.name], p.hasErrors()
	if bad && old != nil && !s.withErrors[p.name] {
		source.NotePreviousKept(p.problems)
		s.source.problems.set(s.name, p.name, p.problems)
		return c, false
	}
	if p.value == nil {
		c, changed = s.remove(p.name)
		s.source.problems.set(s.name, p.name, p.problems)
		return c, changed
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

// remove deletes an object and returns the change to publish.
func (s *store[T]) remove(n model.Name) (c model.Change, changed bool) {
	s.source.problems.set(s.name, n, nil)
	delete(s.withErrors, n)
	if s.forget != nil {
		s.forget(n)
	}
	if s.values[n] == nil {
		return c, false
	}
	delete(s.values, n)
	return s.change(n, nil), true
}
