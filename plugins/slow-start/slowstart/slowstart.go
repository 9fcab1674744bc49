// Package slowstart implements the plugin slow-start: an endpoint that has just become ready gets a small share of new
// connections, which grows in steps to its full share.
package slowstart

import "github.com/sluice-proxy/sluice/sdk"

// plugin has no state except its settings: a decision follows from the time since endpoints became ready.
type plugin struct {
	full   int    // parts of a full capacity
	window int64  // milliseconds
	steps  []step // those below the full capacity, in order
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Decide multiplies the capacity of each new endpoint by the parts of its step.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	next := int64(0) // milliseconds
	for i := range p.steps {
		p.steps[i].added = false
	}
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		age := p.age(req, e)
		if e.Capacity() == 0 || age >= p.window {
			continue
		}
		parts, left := p.step(age)
		if next == 0 || left < next {
			next = left
		}
		if parts < p.full {
			resp.SetCapacity(i, max(1, e.Capacity()*parts/p.full))
			resp.SetReasonID(i, p.reason(resp, parts))
		}
	}
	if next > 0 {
		resp.RequeueAfter(sdk.Duration(next) * sdk.Millisecond)
	}
	return nil
}

// reason returns the reason for an endpoint with parts of its capacity. Adding one compares texts, so it adds each once.
func (p *plugin) reason(resp *sdk.Response, parts int) sdk.ReasonID {
	s := &p.steps[parts-p.steps[0].parts]
	if !s.added {
		s.added, s.id = true, resp.AddReason(s.reason)
	}
	return s.id
}

// age returns how long e has been ready, in milliseconds; an endpoint that is not ready, and has capacity because it drains or is
// held, counts as old. Requests have times in whole seconds, rounded down, so the start is rounded down too: a requeued request
// is then never too early for its step. If the clock has gone back, the age is 0.
func (p *plugin) age(req *sdk.Request, e sdk.Endpoint) int64 {
	since := int64(e.ReadySince())
	if since == 0 || e.Terminating() {
		return p.window
	}
	return max(0, int64(req.Now())-since/1000*1000)
}

// step returns the parts of the capacity for an age within the window, and the time to the next step in milliseconds.
func (p *plugin) step(age int64) (parts int, left int64) {
	parts, left = p.full, p.window-age
	for i := len(p.steps) - 1; i >= 0; i-- {
		s := &p.steps[i]
		parts = s.parts
		if age >= s.start {
			break
		}
		left = s.start - age
	}
	return parts, left
}
