// Package slowstart implements the plugin slow-start: an endpoint that has just become ready gets a small share of new
// connections, which grows in steps to its full share.
package slowstart

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin has no state except its settings: a decision follows from the time since endpoints became ready.
type plugin struct {
	full   int    // parts of a full weight
	window int64  // milliseconds
	steps  []step // those below the full weight, in order

	parts []int // by endpoint; reused between requests
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// reasonEqual is the reason of endpoints that are all in the same step.
const reasonEqual = "all endpoints are equally new"

// Decide multiplies the weight of each endpoint by the parts of its step. Only the ratios of parts matter, so it divides all by their
// greatest common divisor: if no endpoint is new, or all are equally new, every weight stays what it is.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	p.parts = append(p.parts[:0], make([]int, req.NumEndpoints())...)
	common, most, next := 0, 0, int64(0) // of parts; of weights; milliseconds
	least, top := p.full, 0              // parts
	for i := range p.parts {
		e := req.Endpoint(i)
		w := e.Weight()
		if w == 0 {
			continue
		}
		parts := p.full
		if age := p.age(req, e); age < p.window {
			var left int64
			if parts, left = p.step(age); next == 0 || left < next {
				next = left
			}
		}
		p.parts[i] = parts
		common, most = weights.GCD(common, parts), max(most, w*parts)
		least, top = min(least, parts), max(top, parts)
	}
	if next == 0 { // no endpoint is new
		return nil
	}
	resp.RequeueAfter(sdk.Duration(next) * sdk.Millisecond)
	for i := range p.steps {
		p.steps[i].added = false
	}
	for i, parts := range p.parts {
		if parts == 0 {
			continue
		}
		resp.SetWeight(i, scaled(req.Endpoint(i).Weight()*parts, common, most))
		if parts != p.full {
			resp.SetReasonID(i, p.reason(resp, parts, least == top))
		}
	}
	return nil
}

// reason returns the reason for an endpoint with parts of its weight. Adding one compares texts, so it adds each once.
func (p *plugin) reason(resp *sdk.Response, parts int, equal bool) sdk.ReasonID {
	s := &p.steps[parts-p.steps[0].parts]
	if !s.added {
		s.added = true
		text := s.reason
		if equal {
			text = reasonEqual
		}
		s.id = resp.AddReason(text)
	}
	return s.id
}

// scaled divides a weight by the common divisor of all; if the largest would exceed the maximum, it scales all down to that.
func scaled(weight, common, most int) int {
	if most/common <= sdk.MaxWeight {
		return weight / common
	}
	return max(1, int(uint64(weight)*sdk.MaxWeight/uint64(most)))
}

// age returns how long e has been ready, in milliseconds; an endpoint that is not ready, and has weight because it drains or is
// held, counts as old. Requests have times in whole seconds, rounded down, so the start is rounded down too: a requeued request
// is then never too early for its step. If the clock has gone back, the age is 0.
func (p *plugin) age(req *sdk.Request, e sdk.Endpoint) int64 {
	since := int64(e.ReadySince())
	if since == 0 || e.Terminating() {
		return p.window
	}
	return max(0, int64(req.Now())-since/1000*1000)
}

// step returns the parts of the weight for an age within the window, and the time to the next step in milliseconds.
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
