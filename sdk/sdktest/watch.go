package sdktest

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// watch is what a node knows of the outcomes of its connections. The zero value has no reading.
type watch struct {
	readings  []time.Time
	endpoints map[netip.AddrPort]*watched
}

// watched is what is known of an endpoint.
type watched struct {
	first    int                   // index of the reading that saw it first
	attempts []uint64              // by reading since
	base     scenariotest.Counters // before it was watched
	counted  uint64                // unanswered connections
	last     abi.Outcomes
	failedAt uint64 // number of the last reading with a new failure
}

// grace is how long a connection may wait for an answer.
const grace = time.Second

// read takes a reading. An endpoint that leaves is forgotten.
func (w *watch) read(c *scenariotest.Cluster, now time.Time) {
	before := w.endpoints
	window := time.Duration(0)
	if n := len(w.readings); n > 0 {
		window = now.Sub(w.readings[n-1])
	}
	w.readings = append(w.readings, now)
	w.endpoints = map[netip.AddrPort]*watched{}
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		ep := before[e.Addr]
		if ep == nil {
			ep = &watched{first: len(w.readings) - 1, last: abi.Outcomes{Since: now.Add(-window).UnixMilli()}}
			if window == 0 {
				ep.base = e.Counters
			}
		}
		w.endpoints[e.Addr] = ep
		ep.read(e.Counters, w.readings)
	}
}

func (e *watched) read(raw scenariotest.Counters, readings []time.Time) {
	now := readings[len(readings)-1]
	total := scenariotest.Counters{
		Attempts: raw.Attempts - e.base.Attempts, Answered: raw.Answered - e.base.Answered, Refused: raw.Refused - e.base.Refused,
	}
	mature := uint64(0) // connections that were there a second ago
	for i, at := range readings[e.first : len(readings)-1] {
		if now.Sub(at) >= grace {
			mature = e.attempts[i]
		}
	}
	unanswered := uint64(0)
	if ended := total.Answered + total.Refused; mature > ended {
		unanswered = mature - ended
	}
	last := &e.last
	last.Attempts, last.Answered = uint32(total.Attempts-last.TotalAttempts), uint32(total.Answered-last.TotalAnswered)
	last.Refused, last.Unanswered = uint32(total.Refused-last.TotalRefused), 0
	if unanswered > e.counted {
		last.Unanswered = uint32(unanswered - e.counted)
		e.counted = unanswered
	}
	last.TotalAttempts, last.TotalAnswered, last.TotalRefused, last.TotalUnanswered = total.Attempts, total.Answered, total.Refused, unanswered
	if last.Refused > 0 || last.Unanswered > 0 {
		e.failedAt = uint64(len(readings))
	}
	e.attempts = append(e.attempts, total.Attempts)
}

// window returns the time between the last two readings, 0 if there was one at most.
func (w *watch) window() time.Duration {
	if n := len(w.readings); n > 1 {
		return w.readings[n-1].Sub(w.readings[n-2])
	}
	return 0
}

// add adds the outcomes to a request.
func (w *watch) add(req *abi.Request) {
	if w.window() == 0 {
		return
	}
	req.OutcomesWindowMS = uint32(w.window().Milliseconds())
	for i := range req.Endpoints {
		if e := w.endpoints[req.Endpoints[i].Addr]; e != nil {
			req.Endpoints[i].Outcomes = e.last
		}
	}
}

// failures returns the numbers of the last reading and of the last one with a new failure, both 0 for a request without outcomes.
func (w *watch) failures(req *abi.Request) (reading, failedAt uint64) {
	if req.OutcomesWindowMS == 0 {
		return 0, 0
	}
	for i := range req.Endpoints {
		if e := w.endpoints[req.Endpoints[i].Addr]; e != nil {
			failedAt = max(failedAt, e.failedAt)
		}
	}
	return uint64(len(w.readings)), failedAt
}
