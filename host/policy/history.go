package policy

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/service"
)

// history is when the endpoints of a pool were first seen ready and first seen terminating, in whole seconds so that
// nodes which hear of a change in the same second agree.
type history map[netip.AddrPort]since

type since struct{ ready, terminating int64 } // Unix milliseconds, 0: not so

// observe takes in the endpoints as they are at now, and forgets those that are gone.
func (h history) observe(eps []service.Endpoint, now time.Time) {
	ms := wholeSecond(now)
	for i := range eps {
		e := &eps[i]
		old, known := h[e.Addr]
		s := old
		s.ready = sinceWhen(s.ready, e.Ready, ms)
		s.terminating = sinceWhen(s.terminating, e.Terminating, ms)
		if !known || s != old {
			h[e.Addr] = s
		}
	}
	if len(h) == len(eps) {
		return
	}
	here := make(map[netip.AddrPort]bool, len(eps))
	for i := range eps {
		here[eps[i].Addr] = true
	}
	for a := range h {
		if !here[a] {
			delete(h, a)
		}
	}
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
