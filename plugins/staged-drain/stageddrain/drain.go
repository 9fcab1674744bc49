// Package stageddrain is the plugin staged-drain: an endpoint that terminates but still serves gets less and less of the
// new connections, in stages, and then none.
package stageddrain

import (
	"time"

	"github.com/sluice-proxy/sluice/sdk"
)

// Reasons beside those of the stages; none counts down, so that the same answer is the same text.
const (
	reasonDone    = "draining: no new connections"
	reasonUnknown = "draining: no new connections, since when is unknown"
	reasonLast    = "draining, but keeps its weight: nothing else would take new connections"
)

// plugin is stateless but for its settings: an answer follows from the time since an endpoint began to terminate.
type plugin struct {
	stages []stage
	reset  int64 // milliseconds from the end of the last stage; negative: never

	groups []group // by place; of the request at hand, kept for its memory
}

// New makes an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Decide gives each terminating endpoint its stage's part of what its peers have.
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
			resp.RequeueAfter(time.Duration(next) * time.Millisecond)
		}
		if p.reset >= 0 && e.TerminatingSince() > 0 {
			left := p.stages[len(p.stages)-1].end + p.reset - elapsed(req, e)
			resp.SetResetAfter(i, time.Duration(left)*time.Millisecond)
		}
	}
	return nil
}

// keepWeights leaves all weights as they came, for a set in which only draining endpoints take new connections.
func keepWeights(req *sdk.Request, resp *sdk.Response) {
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Terminating() && e.Weight() > 0 {
			resp.SetReason(i, reasonLast)
		}
	}
}

// currentStage tells where e is in its drain, and in how many milliseconds the next stage begins, 0 for never.
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

// elapsed is how many milliseconds e has been draining. Requests carry whole seconds, rounded down, so the start is
// rounded down too: a request that comes when it was asked for is then never a stage early. A clock set back counts
// as no time.
func elapsed(req *sdk.Request, e sdk.Endpoint) int64 {
	since := int64(e.TerminatingSince())
	return max(0, int64(req.Now())-since/1000*1000)
}

// scaledWeight is the weight of an endpoint whose peers have a mean of sum ÷ count: percent hundredths of that, to the nearest
// whole weight, and at least 1 of anything.
func scaledWeight(g group, percent int) int {
	if g.count == 0 || g.sum == 0 || percent == 0 {
		return 0
	}
	return max(1, (g.sum*percent+50*g.count)/(100*g.count))
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
