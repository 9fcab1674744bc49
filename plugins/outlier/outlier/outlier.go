// Package outlier implements the plugin outlier: endpoints that do not answer connections from this node, or refuse them, get no
// new ones for a time, and neither do the endpoints of a node of which several fail.
package outlier

import (
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only buffers between calls: history is in the state of the request.
type plugin struct {
	settings settings

	now      int64  // of the request, Unix seconds
	seed     uint32 // of this node
	state    state
	fresh    []watch    // that this request has begun
	added    []ejection // that this decision has begun
	suspects []suspect
	merged   []suspect
	failing  []failingNode
	order    []int

	count int // endpoints with capacity
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Needs implements sdk.Needer.
func (*plugin) Needs() sdk.Need { return sdk.NeedOutcomes | sdk.NeedEndpointState }

// Decide sets the capacity of ejected endpoints to 0.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	p.now = int64(req.Now()) / 1000
	p.state.read(req)
	p.dropImplausible()
	p.detect(req)
	if len(p.state.ejections)+len(p.state.watches)+len(p.fresh) == 0 {
		return nil
	}
	p.seed = weights.HashText(req.Text(req.Node()))
	p.nodes(req)
	if len(p.failing) > 0 && p.panics() {
		p.withoutNodes()
	}
	if p.panics() || !p.eject(req) {
		p.keepAll(resp)
		resp.Count(countPanics, 1)
	} else {
		p.backOff(resp)
		p.apply(req, resp)
	}
	p.remember(resp)
	return nil
}

// dropImplausible removes ejections that these settings cannot have made: they have changed, or the clock has.
func (p *plugin) dropImplausible() {
	longest := p.settings.MaxEjectionSeconds * (100 + p.settings.JitterPercent) / 100
	n := 0
	for _, e := range p.state.ejections {
		if e.until <= p.now+longest {
			p.state.ejections[n] = e
			n++
		}
	}
	p.state.ejections = p.state.ejections[:n]
}

// keepAll lifts all ejections as long as the panic lasts. Answers end it, which are no reason for the host to call, so it
// requests that every second.
func (p *plugin) keepAll(resp *sdk.Response) {
	reason := resp.AddReason("kept: " + strconv.Itoa(len(p.suspects)) + " of " + strconv.Itoa(p.count) + " fail, panic")
	resp.RequeueAfter(sdk.Second)
	for i := range p.suspects {
		s := &p.suspects[i]
		resp.SetReasonID(s.index, reason)
		s.out = s.ejected // what it was ejected for is remembered
	}
}

// apply sets capacities and reasons.
func (p *plugin) apply(req *sdk.Request, resp *sdk.Response) {
	for i := range p.suspects {
		s := &p.suspects[i]
		if s.out {
			resp.SetCapacity(s.index, 0)
			resp.KeepDraining(s.index)
			resp.SetReason(s.index, p.reason(s))
		} else if s.own {
			resp.SetReason(s.index, "fails, kept: limit of ejections")
		}
	}
	p.trials(req, resp)
}

// reason returns the reason of an ejected endpoint: for how long, and the count of ejections if it is not the first.
func (p *plugin) reason(s *suspect) string {
	text := "ejected for " + strconv.FormatInt(p.settings.ejection(s.times, weights.Mix(s.hash^p.seed)), 10) + " s"
	if s.times > 1 {
		text += ", ejection " + strconv.FormatInt(s.times, 10)
	}
	if s.byNode {
		text += ": its node fails"
	}
	return text
}

// trials gives endpoints that have returned a part of their capacity.
func (p *plugin) trials(req *sdk.Request, resp *sdk.Response) {
	if !slices.ContainsFunc(p.state.ejections, func(e ejection) bool { return p.onTrial(&e) }) {
		return
	}
	for i := range req.NumEndpoints() {
		c := resp.Value(i)
		if c == 0 {
			continue
		}
		if e := p.state.ejection(i); p.onTrial(e) {
			part := int(p.part(e))
			resp.SetCapacity(i, (c*part+99)/100)
			resp.SetReason(i, "returned: "+strconv.Itoa(part)+" %")
		}
	}
}
