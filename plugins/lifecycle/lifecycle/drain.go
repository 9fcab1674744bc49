package lifecycle

import "github.com/sluice-proxy/sluice/sdk"

// Reasons other than those of the stages. None contains a countdown, so equal decisions have equal reasons.
const (
	reasonDone    = "draining: no new connections"
	reasonUnknown = "draining: no new connections (start unknown)"
	reasonLast    = "draining, but keeps its share: there is no other endpoint"
)

// drain reduces the capacity of endpoints that terminate.
type drain struct {
	stages []stage
	reset  int64 // milliseconds from the end of the last stage; negative: never
}

// decide gives each terminating endpoint the percentage of its stage of the mean capacity of the others. Its own capacity is not
// usable: by the default rules it is 0 as soon as the endpoint terminates.
func (d *drain) decide(req *sdk.Request, resp *sdk.Response) {
	draining := false
	for i := range req.NumEndpoints() {
		draining = draining || req.Endpoint(i).Terminating()
	}
	if !draining {
		return
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
			d.drain(req, resp, i, sum/count)
		case e.Capacity() > 0:
			resp.SetReason(i, reasonLast)
		}
	}
}

// drain decides for terminating endpoint i, where others have the mean capacity.
func (d *drain) drain(req *sdk.Request, resp *sdk.Response, i, mean int) {
	e := req.Endpoint(i)
	percent, reason, next := d.currentStage(req, e)
	resp.SetCapacity(i, (mean*percent+99)/100)
	resp.SetReason(i, reason)
	resp.KeepDraining(i)
	if next > 0 {
		resp.RequeueAfter(sdk.Duration(next) * sdk.Millisecond)
	}
	if d.reset >= 0 && e.TerminatingSince() > 0 {
		left := d.stages[len(d.stages)-1].end + d.reset - elapsed(req, e.TerminatingSince())
		resp.SetResetAfter(i, sdk.Duration(left)*sdk.Millisecond)
	}
}

// currentStage returns the percentage and reason for e, and the time to the next stage in milliseconds, 0 if there is none.
func (d *drain) currentStage(req *sdk.Request, e sdk.Endpoint) (percent int, reason string, next int64) {
	if e.TerminatingSince() == 0 {
		return 0, reasonUnknown, 0
	}
	gone := elapsed(req, e.TerminatingSince())
	for i := range d.stages {
		if s := &d.stages[i]; gone < s.end {
			return s.percent, s.reason, s.end - gone
		}
	}
	return 0, reasonDone, 0
}
