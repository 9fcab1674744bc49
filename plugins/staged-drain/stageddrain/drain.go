// Package stageddrain implements the plugin staged-drain: a terminating endpoint that still serves gets fewer and fewer new
// connections, in stages, and finally none.
package stageddrain

import "github.com/sluice-proxy/sluice/sdk"

// Reasons other than those of the stages. None contains a countdown, so equal decisions have equal reasons.
const (
	reasonDone    = "draining: no new connections"
	reasonUnknown = "draining: no new connections (start unknown)"
	reasonLast    = "draining, but keeps its share: there is no other endpoint"
)

// plugin has no state except its settings: a decision follows from the time since an endpoint started to terminate.
type plugin struct {
	stages []stage
	reset  int64 // milliseconds from the end of the last stage; negative: never
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Decide gives each terminating endpoint the percentage of its stage of the mean capacity of the others. Its own capacity is not usable: by the
// default rules it is 0 as soon as the endpoint terminates.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	draining := false
	for i := range req.NumEndpoints() {
		draining = draining || req.Endpoint(i).Terminating()
	}
	if !draining {
		return nil
	}
	others, sum, count := false, 0, 0
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); !e.Terminating() && e.Capacity() > 0 {
			others, sum, count = others || e.Share() > 0, sum+e.Capacity(), count+1
		}
	}
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		switch {
		case !e.Terminating():
		case others:
			p.drain(req, resp, i, sum/count)
		case e.Capacity() > 0:
			resp.SetReason(i, reasonLast)
		}
	}
	return nil
}

// drain decides for terminating endpoint i, where others have the mean capacity.
func (p *plugin) drain(req *sdk.Request, resp *sdk.Response, i, mean int) {
	e := req.Endpoint(i)
	percent, reason, next := p.currentStage(req, e)
	resp.SetCapacity(i, (mean*percent+99)/100)
	resp.SetReason(i, reason)
	resp.KeepDraining(i)
	if next > 0 {
		resp.RequeueAfter(sdk.Duration(next) * sdk.Millisecond)
	}
	if p.reset >= 0 && e.TerminatingSince() > 0 {
		left := p.stages[len(p.stages)-1].end + p.reset - elapsed(req, e)
		resp.SetResetAfter(i, sdk.Duration(left)*sdk.Millisecond)
	}
}

// currentStage returns the percentage and reason for e, and the time to the next stage in milliseconds, 0 if there is none.
func (p *plugin) currentStage(req *sdk.Request, e sdk.Endpoint) (percent int, reason string, next int64) {
	if e.TerminatingSince() == 0 {
		return 0, reasonUnknown, 0
	}
	gone := elapsed(req, e)
	for i := range p.stages {
		if s := &p.stages[i]; gone < s.end {
			return s.percent, s.reason, s.end - gone
		}
	}
	return 0, reasonDone, 0
}

// elapsed returns how long e has been draining, in milliseconds. Requests have times in whole seconds, rounded down, so the
// start is rounded down too: a requeued request is then never too early for its stage. If the clock has gone back, it
// returns 0.
func elapsed(req *sdk.Request, e sdk.Endpoint) int64 {
	since := int64(e.TerminatingSince())
	return max(0, int64(req.Now())-since/1000*1000)
}
