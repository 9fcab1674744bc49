// Package stageddrain implements the plugin staged-drain: a terminating endpoint that still serves gets fewer and fewer new
// connections, in stages, and finally none.
package stageddrain

import (
	"github.com/sluice-proxy/sluice/sdk"
)

// Reasons other than those of the stages. None contains a countdown, so equal decisions have equal reasons.
const (
	reasonDone    = "draining: no new connections"
	reasonUnknown = "draining: no new connections (start unknown)"
	reasonLast    = "draining, but keeps its weight: no other endpoint has weight"
)

// plugin has no state except its settings: a decision follows from the time since an endpoint started to terminate.
type plugin struct {
	stages []stage
	reset  int64 // milliseconds from the end of the last stage; negative: never

	groups []group // by groupIndex; reused between requests
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Decide gives each terminating endpoint the percentage of its stage of the mean weight of its peers.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	draining, largest, others := 0, 1, false
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if largest = max(largest, e.Weight()); e.Terminating() {
			draining++
		} else if e.Weight() > 0 {
			others = true
		}
	}
	if draining == 0 {
		return nil
	}
	if !others {
		keepWeights(req, resp)
		return nil
	}
	scale := min(p.sumGroups(req), sdk.MaxWeight/largest)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if !e.Terminating() {
			resp.SetWeight(i, e.Weight()*scale)
			continue
		}
		percent, reason, next := p.currentStage(req, e)
		resp.SetWeight(i, scaledWeight(p.peers(e), scale*percent))
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
	return nil
}

// keepWeights keeps all weights, for a set in which only draining endpoints have weight.
func keepWeights(req *sdk.Request, resp *sdk.Response) {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Terminating() && e.Weight() > 0 {
			resp.SetReason(i, reasonLast)
		}
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

// scaledWeight returns percent of the mean weight of the peers, rounded to the nearest integer, and at least 1 if it is not 0.
func scaledWeight(g group, percent int) int {
	if g.count == 0 || g.sum == 0 || percent == 0 {
		return 0
	}
	return max(1, (g.sum*percent+50*g.count)/(100*g.count))
}
