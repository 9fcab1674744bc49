package ipvs

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/plan"
)

// mark is the companion's Companion.Mark.
func (b *Backend) mark(f *plan.Frontend, outside bool) uint32 {
	m := b.now.marks[f.Key]
	switch {
	case outside:
		return m.Outside
	case f.Outside == nil && !f.Key.IsNodePort():
		return 0
	}
	return m.Inside
}

// assignMarks gives a frontend's pools the marks that they are told by.
func (b *Backend) assignMarks(k plan.Key, f *plan.Frontend) (err error) {
	if f == nil {
		return nil
	}
	m := b.now.marks[k]
	before := m
	if len(f.Pool.Members) > 0 && m.Inside == 0 && (k.IsNodePort() || f.Outside != nil) {
		m.Inside, err = b.now.newMark()
	}
	if err == nil && k.IsNodePort() && f.Outside != nil && len(f.Outside.Members) > 0 && m.Outside == 0 {
		m.Outside, err = b.now.newMark()
	}
	if m != before {
		b.now.marks[k] = m
	}
	return err
}

// freeMarks forgets marks that the companion has no more. They are free when their virtual servers are gone.
func (b *Backend) freeMarks(j *job) {
	m, ok := b.now.marks[j.key]
	if !ok {
		return
	}
	f := j.next
	if f == nil || len(f.Pool.Members) == 0 || f.Outside == nil && !j.key.IsNodePort() {
		m.Inside = 0
	}
	if f == nil || f.Outside == nil || len(f.Outside.Members) == 0 || !j.key.IsNodePort() {
		m.Outside = 0
	}
	if b.now.marks[j.key] = m; m.Inside|m.Outside == 0 {
		delete(b.now.marks, j.key)
	}
}

// errMarks: there are a million.
var errMarks = errors.New("all packet marks are in use")

// newMark finds one that is free.
func (s *state) newMark() (uint32, error) {
	const room = 1<<20 - 1 // the last one has another meaning
	for i := range uint32(room) {
		m := nftables.MarkBase | (uint32(len(s.byMark))+i)%room
		if !s.byMark[m] {
			s.byMark[m] = true
			return m, nil
		}
	}
	return 0, errMarks
}
