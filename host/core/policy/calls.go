package policy

import (
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// calls are those that are to be made, and those that nothing refers to any more.
type calls struct {
	asked          []*Call // since the last Calls
	askedEndpoints int     // of them
	free           []*Call // for reuse
	freeEndpoints  int     // the room of these calls
}

// maxAsked and maxAskedEndpoints are from how many calls, or endpoints in their requests, on Calls should be emptied.
const (
	maxAsked          = maxFreeCalls
	maxAskedEndpoints = maxFreeEndpoints
)

// Full reports whether there are so many Calls that their requests take much memory.
func (q *calls) Full() bool {
	return len(q.asked) >= maxAsked || q.askedEndpoints >= maxAskedEndpoints
}

// Calls returns the calls that are to be made since the last time, those of a pool in their order. Their answers are for Answer.
func (q *calls) Calls() []*Call {
	out := q.asked
	q.asked, q.askedEndpoints = nil, 0
	return out
}

// add adds a call that is to be made.
func (q *calls) add(c *Call) {
	q.asked, q.askedEndpoints = append(q.asked, c), q.askedEndpoints+len(c.Request.Endpoints)
}

// withdraw tells whoever makes calls that the pool does not ask the plugin any more.
func (q *calls) withdraw(r *chainRun) {
	if r.answer == nil {
		_, shadow := CutShadow(r.plugin)
		q.asked = append(q.asked, &Call{Key: r.key, Shadow: shadow, Name: r.plugin})
	}
}

// maxFreeCalls and maxFreeEndpoints bound the memory of calls that are kept for reuse: their number, and their endpoints, of some
// 250 bytes.
const (
	maxFreeCalls     = 64
	maxFreeEndpoints = 16_384
)

// newCall returns a call to build a request with n endpoints in: one with about that much room, the smallest with more, or the
// largest.
func (q *calls) newCall(n int) *Call {
	if len(q.free) == 0 {
		return &Call{run: &chainRun{}}
	}
	best := len(q.free) - 1
	for i := best; i >= 0 && (q.free[best].room() < n || q.free[best].room() > 2*n); i-- { // the last one is in the processor's cache
		room, of := q.free[i].room(), q.free[best].room()
		if room >= n && (of < n || room < of) || room < n && room > of {
			best = i
		}
	}
	c := q.free[best]
	q.freeEndpoints -= c.room()
	q.free = slices.Delete(q.free, best, best+1)
	return c
}

// release keeps a call that nothing refers to any more for reuse.
func (q *calls) release(c *Call) {
	if len(q.free) < maxFreeCalls && q.freeEndpoints+c.room() <= maxFreeEndpoints {
		c.Plugin, c.Err, *c.run = nil, nil, chainRun{}
		if cap(c.values) > maxFreeEndpoints {
			c.values = nil
		}
		if cap(c.endpointStates) > maxFreeEndpoints*abi.MaxEndpointState {
			c.endpointStates = nil
		}
		q.free, q.freeEndpoints = append(q.free, c), q.freeEndpoints+c.room()
	}
}
