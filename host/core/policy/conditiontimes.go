package policy

import (
	"math"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// conditionTimes stores since when the endpoints of a pool are ready and since when they are terminating. Times are whole seconds
// so that nodes that see a change in the same second agree. It is sorted by address, and parallel to the endpoints of the last
// update.
type conditionTimes struct {
	addrs model.AddrList
	times []timestamps
}

// timestamps are in Unix seconds; 0: the condition is false.
type timestamps struct{ ready, terminating uint32 }

// update updates the times from the conditions at now, and drops endpoints that are not in eps.
func (h *conditionTimes) update(eps []eligibility.Endpoint, now time.Time) {
	if !sameAddrs(h.addrs, len(eps), func(i int) netip.AddrPort { return eps[i].Addr }) {
		old, j, n := *h, 0, h.addrs.Len()
		h.addrs = model.PackAddrs(len(eps), func(i int) netip.AddrPort { return eps[i].Addr })
		h.times = make([]timestamps, len(eps))
		for i := range eps {
			for j < n && old.addrs.At(j).Compare(eps[i].Addr) < 0 {
				j++
			}
			if j < n && old.addrs.At(j) == eps[i].Addr {
				h.times[i] = old.times[j]
			}
		}
	}
	s := max(seconds(wholeSecond(now)), 1)
	for i := range eps {
		t := &h.times[i]
		t.ready = transitionTime(t.ready, eps[i].Ready, s)
		t.terminating = transitionTime(t.terminating, eps[i].Terminating, s)
	}
}

// sameAddrs reports whether a list contains these n addresses in this order.
func sameAddrs(l model.AddrList, n int, at func(i int) netip.AddrPort) bool {
	if l.Len() != n {
		return false
	}
	for i := range n {
		if l.At(i) != at(i) {
			return false
		}
	}
	return true
}

// transitionTime returns since when a condition is true, 0 if it is not, given the time at the last update.
func transitionTime(since uint32, isTrue bool, now uint32) uint32 {
	switch {
	case !isTrue:
		return 0
	case since == 0, since > now: // the checkpoint was changed
		return now
	}
	return since
}

// seconds converts Unix milliseconds to seconds within the range of uint32. Only 0 becomes 0.
func seconds(ms int64) uint32 {
	if ms == 0 {
		return 0
	}
	return uint32(min(max(ms/1000, 1), math.MaxUint32))
}

func milliseconds(s uint32) int64 { return int64(s) * 1000 }

// wholeSecond returns now in Unix milliseconds rounded down to 1 s, the time that plugins see.
func wholeSecond(now time.Time) int64 { return now.Unix() * 1000 }
