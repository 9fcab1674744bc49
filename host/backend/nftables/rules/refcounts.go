package rules

import (
	"iter"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
)

// refCounts is a set of addresses of which each is there because of some number of others: endpoints that need a hairpin
// entry, addresses that have frontends.
type refCounts struct {
	set     *set
	double  bool // the key is the address twice
	v4      map[[4]byte]ref
	v6      map[[16]byte]ref
	touched []netip.Addr
}

func newRefCounts(s *set, double bool) refCounts {
	return refCounts{set: s, double: double, v4: map[[4]byte]ref{}, v6: map[[16]byte]ref{}}
}

// ref is a count, and in the lowest bits what is known of the address: one for each endpoint of the cluster.
type ref int32

const (
	refInKernel ref = 1 << iota
	refTouched
	refOne // to be counted
)

func (v ref) count() int32 { return int32(v >> 2) }

func (r *refCounts) get(a netip.Addr) ref {
	if a.Is4() {
		return r.v4[a.As4()]
	}
	return r.v6[a.As16()]
}

// put keeps what is known of an address; nothing is not kept.
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

// touch has what follows for the kernel found out when the transaction is complete.
func (r *refCounts) touch(a netip.Addr, v ref) ref {
	if v&refTouched == 0 {
		r.touched = append(r.touched, a)
	}
	return v | refTouched
}

// add adds to an address's count. What follows for the kernel is found out when the transaction is complete,
// because an address may go and come back within one.
func (r *refCounts) add(x *tx, a netip.Addr, by int32) {
	v := r.get(a) + ref(by)*refOne
	if v.count() > 0 != (v&refInKernel != 0) && v&refTouched == 0 {
		v = r.touch(a, v)
		x.bytes += 80
	}
	r.put(a, v)
}

// setInKernel notes an address that the kernel has. Whether anything refers to it is known at the first commit.
func (r *refCounts) setInKernel(a netip.Addr) { r.put(a, r.touch(a, r.get(a)|refInKernel)) }

func (r *refCounts) flush(x *tx) {
	for _, a := range r.touched {
		v := r.get(a) &^ refTouched
		if want := v.count() > 0; want != (v&refInKernel != 0) {
			key := a.AsSlice()
			if r.double {
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

func (t *table) flushRefs(x *tx) {
	x.owner = ""
	if !t.hairpinsUncounted {
		t.hairpins.flush(x)
	}
	t.clusterAddrs.flush(x)
	t.otherAddrs.flush(x)
	t.vipRefs.flush(x)
}
