package ipvs

import (
	"fmt"
	"math/bits"

	"github.com/sluice-proxy/sluice/host/core/plan"
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
		m.Inside, err = b.allocateMark()
	}
	if err == nil && k.IsNodePort() && f.Outside != nil && len(f.Outside.Endpoints) > 0 && m.Outside == 0 {
		m.Outside, err = b.allocateMark()
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

// errNoFreeMark is why a frontend cannot be programmed that needs a packet mark.
func (b *Backend) errNoFreeMark() error {
	return fmt.Errorf("all %d packet marks of ipvs.markMask %#x are in use: give it more bits", b.maxMarks(), b.o.MarkMask)
}

// maxMarks is the number of packet marks: all values of the bits, without zero and that of all bits, which has another
// meaning to the nftables backend.
func (b *Backend) maxMarks() uint32 { return 1<<bits.OnesCount32(b.o.MarkMask) - 2 }

// allocateMark returns a mark that is not in use. High ones come first: programs that an operator configures by hand tend
// to use small numbers.
func (b *Backend) allocateMark() (uint32, error) {
	s, n := &b.state, b.maxMarks()
	for i := range n {
		m := spread(n-(uint32(len(s.marksInUse))+i)%n, b.o.MarkMask)
		if !s.marksInUse[m] {
			s.marksInUse[m] = true
			return m, nil
		}
	}
	return 0, b.errNoFreeMark()
}

// spread puts the low bits of n at the bits of mask, in their order.
func spread(n, mask uint32) (out uint32) {
	for ; mask != 0; n, mask = n>>1, mask&(mask-1) {
		if n&1 != 0 {
			out |= mask & -mask
		}
	}
	return out
}
