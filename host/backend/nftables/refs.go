package nftables

import "net/netip"

// refs is a set of addresses of which each is there because of some number of others: endpoints that need a hairpin
// entry, addresses that have frontends.
type refs struct {
	set     *set
	double  bool // the key is the address twice
	n       map[netip.Addr]ref
	touched []netip.Addr
}

type ref struct {
	count    int32
	inKernel bool
	touched  bool
}

// change adds to an address's count. What follows for the kernel is found out when the transaction is complete,
// because an address may go and come back within one.
func (r *refs) change(x *tx, a netip.Addr, by int32) {
	v := r.n[a]
	v.count += by
	if v.count > 0 != v.inKernel && !v.touched {
		v.touched = true
		r.touched = append(r.touched, a)
		x.bytes += 80
	}
	r.n[a] = v
}

// held notes an address that the kernel has.
func (r *refs) held(a netip.Addr) {
	v := r.n[a]
	v.inKernel = true
	if !v.touched {
		// Whether anything refers to it is known at the first commit.
		v.touched = true
		r.touched = append(r.touched, a)
	}
	r.n[a] = v
}

func (r *refs) settle(x *tx) {
	for _, a := range r.touched {
		v := r.n[a]
		v.touched = false
		want := v.count > 0
		if want != v.inKernel {
			key := a.AsSlice()
			if r.double {
				key = append(key, key...)
			}
			if want {
				x.add(r.set, element{key: key})
			} else {
				x.del(r.set, element{key: key})
			}
			v.inKernel = want
		}
		if v.count == 0 && !v.inKernel {
			delete(r.n, a)
		} else {
			r.n[a] = v
		}
	}
	r.touched = r.touched[:0]
}

func (t *table) settleRefs(x *tx) {
	x.owner = ""
	t.hairpins.settle(x)
	t.clusterAddrs.settle(x)
	t.otherAddrs.settle(x)
}
