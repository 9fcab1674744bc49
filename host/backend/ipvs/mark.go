package ipvs

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/plan"
)

// poolMark is the companion's Companion.Mark.
func (b *Backend) poolMark(f *plan.Frontend, outside bool) uint32 {
	m := b.state.marks[f.Key]
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
	m := b.state.marks[k]
	before := m
	if len(f.Pool.Members) > 0 && m.Inside == 0 && (k.IsNodePort() || f.Outside != nil) {
		m.Inside, err = b.state.allocateMark()
	}
	if err == nil && k.IsNodePort() && f.Outside != nil && len(f.Outside.Members) > 0 && m.Outside == 0 {
		m.Outside, err = b.state.allocateMark()
	}
	if m != before {
		b.state.marks[k] = m
	}
	return err
}

// freeMarks forgets marks that the companion has no more. They are free when their virtual servers are gone.
func (b *Backend) freeMarks(j *frontendUpdate) {
	m, ok := b.state.marks[j.key]
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
	if b.state.marks[j.key] = m; m.Inside|m.Outside == 0 {
		delete(b.state.marks, j.key)
	}
}

// errNoFreeMark: there are a million.
var errNoFreeMark = errors.New("all packet marks are in use")

// allocateMark finds one that is free.
func (s *state) allocateMark() (uint32, error) {
	const room = 1<<20 - 1 // the last one has another meaning
	for i := range uint32(room) {
		m := rules.MarkBase | (uint32(len(s.marksInUse))+i)%room
		if !s.marksInUse[m] {
			s.marksInUse[m] = true
			return m, nil
		}
	}
	return 0, errNoFreeMark
}
