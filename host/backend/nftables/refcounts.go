package nftables

import (
	"iter"
	"net/netip"

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

// ref is a count above some bits of state. There is one for each endpoint of the cluster.
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

func (r *refCounts) len() int { return len(r.v4) + len(r.v6) }

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

func (r *refCounts) flush(x *tx) {
	for _, a := range r.touched {
		v := r.get(a) &^ refTouched
		if want := v.count() > 0; want != (v&refInKernel != 0) {
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
	r.touched = r.touched[:0]
}

// addEndpoint changes the number of slots of an endpoint, which needs a hairpin entry, or rules that refuse its connections.
func (t *table) addEndpoint(x *tx, a netip.Addr, by int32) {
	if !plan.IsRefusing(a) {
		t.hairpins.add(x, a, by)
		return
	}
	if t.refusingAddrs.add(x, a, by); by > 0 {
		t.need(t.refusing)
		x.enters = t.refusing.grace.addTo(x.enters)
	}
}

func (t *table) flushRefs(x *tx) {
	x.owner = ""
	if !t.hairpinsUncounted {
		t.hairpins.flush(x)
		t.refusingAddrs.flush(x)
	}
	t.clusterAddrs.flush(x)
	t.otherAddrs.flush(x)
	t.vipRefs.flush(x)
	t.flushCounted(x)
}
