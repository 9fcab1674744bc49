package nftables

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// refCounts is a set of addresses in the kernel, each with its number of references: endpoints that need a hairpin
// entry, addresses that have frontends.
type refCounts struct {
	set     *set
	twice   bool // the key is the address twice
	v4      map[[4]byte]ref
	v6      map[[16]byte]ref
	touched []netip.Addr
}

func newRefCounts(s *set, double bool) refCounts {
	return refCounts{set: s, twice: double, v4: map[[4]byte]ref{}, v6: map[[16]byte]ref{}}
}

// ref is a count above some bits of state.
type ref int32

const (
	refInKernel ref = 1 << iota
	refTouched
	refOne // unit of the count
)

func (v ref) count() int32 { return int32(v >> 2) }

func (r *refCounts) get(a netip.Addr) ref {
	if a.Is4() {
		return r.v4[a.As4()]
	}
	return r.v6[a.As16()]
}

// put stores the state of an address. Zero is not stored.
func (r *refCounts) put(a netip.Addr, v ref) {
	switch {
	case a.Is4() && v == 0:
		delete(r.v4, a.As4())
	case a.Is4():
		r.v4[a.As4()] = v
	case v == 0:
		delete(r.v6, a.As16())
	default:
		r.v6[a.As16()] = v
	}
}

func (r *refCounts) all() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := range r.v4 {
			if !yield(netip.AddrFrom4(a)) {
				return
			}
		}
		for a := range r.v6 {
			if !yield(netip.AddrFrom16(a)) {
				return
			}
		}
	}
}

// touch schedules an address for flush.
func (r *refCounts) touch(a netip.Addr, v ref) ref {
	if v&refTouched == 0 {
		r.touched = append(r.touched, a)
	}
	return v | refTouched
}

// add changes the count of an address. Only flush decides what to write, as an address may go and come back within one
// transaction.
func (r *refCounts) add(x *tx, a netip.Addr, by int32) {
	v := r.get(a) + ref(by)*refOne
	if v.count() > 0 != (v&refInKernel != 0) && v&refTouched == 0 {
		v = r.touch(a, v)
		x.bytes += 80
	}
	r.put(a, v)
}

// setInKernel records that the kernel has an address. The next commit deletes it if nothing refers to it.
func (r *refCounts) setInKernel(a netip.Addr) { r.put(a, r.touch(a, r.get(a)|refInKernel)) }

// flush writes the changes, except for deletions if those have to wait.
func (r *refCounts) flush(x *tx, deletionsWait bool) {
	waiting := r.touched[:0]
	for _, a := range r.touched {
		v := r.get(a)
		want := v.count() > 0
		if !want && v&refInKernel != 0 && deletionsWait {
			waiting = append(waiting, a)
			continue
		}
		if v &^= refTouched; want != (v&refInKernel != 0) {
			key := a.AsSlice()
			if r.twice {
				key = append(key, key...)
			}
			if want {
				x.add(r.set, nfnl.Element{Key: key})
			} else {
				x.del(r.set, nfnl.Element{Key: key})
			}
			v ^= refInKernel
		}
		r.put(a, v)
	}
	r.touched = waiting
}

// enteredEndpointsOf returns the endpoints of a frontend whose addresses need an entry: those that may be on this node a hairpin
// entry, as kube-proxy 1.37 has it, and the one that stands for refusing rules that do so.
func enteredEndpointsOf(f *plan.Frontend) packedSlots {
	var list []netip.AddrPort
	for e := range f.AllEndpoints() {
		if e.Weight > 0 && !e.Remote {
			list = append(list, e.Addr)
		}
	}
	return pack(list)
}

// enter changes the number of references to the addresses of such endpoints. It commits when the transaction is full.
func (t *table) enter(x *tx, list packedSlots, by int32) error {
	for i := range list.len() {
		a := list.at(i).Addr()
		if !plan.IsRefusing(a) {
			t.hairpins.add(x, a, by)
		} else if t.refusingAddrs.add(x, a, by); by > 0 {
			t.need(t.refusing)
			x.enters = t.refusing.grace.addTo(x.enters)
		}
		if x.full() {
			if err := x.commit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// enterKept counts the addresses of a frontend that was read and keeps its state.
func (t *table) enterKept(x *tx, k plan.Key) error {
	h := t.frontends[k]
	if h == nil || h.entered != nil || !t.addrsUncounted {
		return nil
	}
	var list []netip.AddrPort
	for l := range scopes {
		for _, a := range h.scopes[l].slots.unpack() {
			if a.IsValid() {
				list = append(list, a)
			}
		}
	}
	h.entered = pack(list)
	return t.enter(x, h.entered, 1)
}

// settleAddrs deletes the entries that the kernel had when the table was read and that no frontend needs, of which there may be
// many.
func (t *table) settleAddrs(x *tx) error {
	if !t.addrsUncounted {
		return nil
	}
	x.owner = ""
	for _, r := range []*refCounts{&t.hairpins, &t.refusingAddrs} {
		all := r.touched
		r.touched = nil
		for part := range slices.Chunk(all, 256) {
			r.touched = part
			if r.flush(x, false); !x.shouldCommit() {
				continue
			}
			if err := x.commitLater(); err != nil {
				return err
			}
		}
	}
	t.addrsUncounted = false
	return nil
}

func (t *table) flushRefs(x *tx) {
	x.owner = ""
	t.hairpins.flush(x, t.addrsUncounted)
	t.refusingAddrs.flush(x, t.addrsUncounted)
	t.clusterAddrs.flush(x, false)
	t.otherAddrs.flush(x, false)
	t.vipRefs.flush(x, false)
	t.flushCounted(x)
}
