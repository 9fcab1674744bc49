package ipvs

import (
	"errors"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/plan"
)

// poolMark is rules.HandOff.PoolMark. A pool without endpoints has no mark: freeMarks releases it after the rules are
// written, so the rules must not refer to it any more.
func (b *Backend) poolMark(f *plan.Frontend, outside bool) uint32 {
	m, pool := b.state.marks[f.Key], &f.Pool
	if outside {
		pool = f.Outside
	}
	switch {
	case pool == nil || len(pool.Endpoints) == 0:
		return 0
	case outside:
		return m.Outside
	case f.Outside == nil && !f.Key.IsNodePort():
		return 0
	}
	return m.Inside
}

// assignMarks allocates the packet marks of a frontend's pools.
func (b *Backend) assignMarks(k plan.Key, f *plan.Frontend) (err error) {
	if f == nil {
		return nil
	}
	m := b.state.marks[k]
	before := m
	if len(f.Pool.Endpoints) > 0 && m.Inside == 0 && (k.IsNodePort() || f.Outside != nil) {
		m.Inside, err = b.state.allocateMark()
	}
	if err == nil && k.IsNodePort() && f.Outside != nil && len(f.Outside.Endpoints) > 0 && m.Outside == 0 {
		m.Outside, err = b.state.allocateMark()
	}
	if m != before {
		b.state.marks[k] = m
	}
	return err
}

// freeMarks drops marks that the nftables rules no longer contain. They can be reused once their virtual servers are
// deleted.
func (b *Backend) freeMarks(u *frontendUpdate) {
	m, ok := b.state.marks[u.key]
	if !ok {
		return
	}
	f := u.next
	if f == nil || len(f.Pool.Endpoints) == 0 || f.Outside == nil && !u.key.IsNodePort() {
		m.Inside = 0
	}
	if f == nil || f.Outside == nil || len(f.Outside.Endpoints) == 0 || !u.key.IsNodePort() {
		m.Outside = 0
	}
	if b.state.marks[u.key] = m; m.Inside|m.Outside == 0 {
		delete(b.state.marks, u.key)
	}
}

// maxMarks is the number of packet marks. The one after them has another meaning to the nftables backend.
const maxMarks = 1<<20 - 1

var errNoFreeMark = errors.New("all packet marks are in use")

func (s *state) allocateMark() (uint32, error) {
	for i := range uint32(maxMarks) {
		m := rules.MarkBase | (uint32(len(s.marksInUse))+i)%maxMarks
		if !s.marksInUse[m] {
			s.marksInUse[m] = true
			return m, nil
		}
	}
	return 0, errNoFreeMark
}
