package policy

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/service"
)

// history is when the endpoints of a pool were first seen ready and first seen terminating, in whole seconds so that
// nodes which hear of a change in the same second agree. It is sorted by address, and parallel to the endpoints that
// it has observed last.
type history []since

type since struct {
	addr               netip.AddrPort
	ready, terminating int64 // Unix milliseconds, 0: not so
}

// observe takes in the endpoints as they are at now, and forgets those that are gone.
func (h *history) observe(eps []service.Endpoint, now time.Time) {
	if !h.parallel(eps) {
		old, j := *h, 0
		*h = make(history, len(eps))
		for i := range eps {
			s := &(*h)[i]
			s.addr = eps[i].Addr
			for j < len(old) && old[j].addr.Compare(s.addr) < 0 {
				j++
			}
			if j < len(old) && old[j].addr == s.addr {
				*s = old[j]
			}
		}
	}
	ms := wholeSecond(now)
	for i := range eps {
		s := &(*h)[i]
		s.ready = sinceWhen(s.ready, eps[i].Ready, ms)
		s.terminating = sinceWhen(s.terminating, eps[i].Terminating, ms)
	}
}

// parallel tells whether h is about these endpoints, one by one.
func (h *history) parallel(eps []service.Endpoint) bool {
	if len(*h) != len(eps) {
		return false
	}
	for i := range eps {
		if (*h)[i].addr != eps[i].Addr {
			return false
		}
	}
	return true
}

func sinceWhen(since int64, is bool, now int64) int64 {
	switch {
	case !is:
		return 0
	case since == 0, since > now: // a clock that was set back, or a checkpoint from the future
		return now
	}
	return since
}

// wholeSecond is now in Unix milliseconds, rounded down to 1 s: the time that plugins see.
func wholeSecond(now time.Time) int64 { return now.Unix() * 1000 }
