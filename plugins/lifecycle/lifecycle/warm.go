package lifecycle

import "github.com/sluice-proxy/sluice/sdk"

// warm increases the capacity of new endpoints.
type warm struct {
	full     int    // parts of a full capacity
	duration int64  // milliseconds
	steps    []step // those below the full capacity, in order
}

// decide multiplies the capacity of each new endpoint by the parts of its step.
func (w *warm) decide(req *sdk.Request, resp *sdk.Response) {
	next := int64(0) // milliseconds
	for i := range w.steps {
		w.steps[i].added = false
	}
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		age := w.age(req, e)
		if e.Capacity() == 0 || age >= w.duration {
			continue
		}
		parts, left := w.step(age)
		if next == 0 || left < next {
			next = left
		}
		if parts < w.full {
			resp.SetCapacity(i, max(1, e.Capacity()*parts/w.full))
			resp.SetReasonID(i, w.reason(resp, parts))
		}
	}
	if next > 0 {
		resp.RequeueAfter(sdk.Duration(next) * sdk.Millisecond)
	}
}

// reason returns the reason for an endpoint with parts of its capacity. Adding one compares texts, so it adds each once.
func (w *warm) reason(resp *sdk.Response, parts int) sdk.ReasonID {
	s := &w.steps[parts-w.steps[0].parts]
	if !s.added {
		s.added, s.id = true, resp.AddReason(s.reason)
	}
	return s.id
}

// age returns how long e has been ready, in milliseconds; an endpoint that is not ready, and has capacity because it drains or is
// held, counts as old.
func (w *warm) age(req *sdk.Request, e sdk.Endpoint) int64 {
	since := e.ReadySince()
	if since == 0 || e.Terminating() {
		return w.duration
	}
	return elapsed(req, since)
}

// step returns the parts of the capacity for an age below the duration, and the time to the next step in milliseconds.
func (w *warm) step(age int64) (parts int, left int64) {
	parts, left = w.full, w.duration-age
	for i := len(w.steps) - 1; i >= 0; i-- {
		s := &w.steps[i]
		parts = s.parts
		if age >= s.start {
			break
		}
		left = s.start - age
	}
	return parts, left
}
