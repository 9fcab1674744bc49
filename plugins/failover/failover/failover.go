// Package failover implements the plugin failover: groups of endpoints, such as zones, are used in order. A group gets as many of
// the new connections as its healthy endpoints can take, the next group the rest.
package failover

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: history is in the state of the request.
type plugin struct {
	settings settings
	sorter   weights.Sorter
	groups   []group
	shares   weights.Groups // of groups

	at         []int // group of each endpoint
	prev, next state
	buf        []byte
}

// group is a group of endpoints in the order of the settings; the last one has all others.
type group struct {
	name string

	members  uint64 // endpoints
	all      uint64 // of them, those that do not terminate
	healthy  uint64 // of all
	unchosen uint64 // of healthy, those that the default rules did not choose

	reason  sdk.ReasonID
	percent uint64 // of text
	text    string // last reason
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Keys implements sdk.Keyer.
func (p *plugin) Keys() []string { return p.sorter.Keys() }

// Decide multiplies the weights of the endpoints of each group.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	ref, unit, largest := p.count(req)
	if !p.target() {
		reason := resp.AddReason("weights kept: no endpoint is healthy")
		for i := range req.NumEndpoints() {
			resp.SetReasonID(i, reason)
		}
		resp.SetState(req.State()) // a failure of all must not look like the first decision afterwards
		return nil
	}
	p.prev.read(req.State(), p.shares)
	if wait := p.hold(int64(req.Now())); wait > 0 {
		resp.RequeueAfter(sdk.Duration(wait) * sdk.Millisecond)
	}
	p.shares.ChooseMultipliers(weights.Limits{MaxTotal: uint64(p.settings.MaxTotal), Largest: largest / unit})
	p.setReasons(resp)
	for i, g := range p.at {
		e := req.Endpoint(i)
		w := uint64(e.Weight())
		if w == 0 && weights.Unchosen(e.Conditions()) {
			w = ref
		}
		if w > 0 {
			resp.SetWeight(i, int(w/unit*p.shares[g].Multiplier))
		}
		if e.Eligible() {
			resp.SetReasonID(i, p.groups[g].reason)
		}
	}
	p.buf = p.next.append(p.buf[:0])
	resp.SetState(p.buf)
	return nil
}

// count sums up the endpoints and weights of each group. It returns the weight for healthy endpoints that the default rules did not
// choose, the greatest common divisor of all weights, and the largest. An endpoint is healthy if it is ready and may have weight: a
// previous plugin that sets its weight to 0 knows that it is not. Terminating endpoints are neither: a scale-down is no failure.
func (p *plugin) count(req *sdk.Request) (ref, unit, largest uint64) {
	p.shares = append(p.shares[:0], make(weights.Groups, len(p.groups))...)
	for i := range p.groups {
		g := &p.groups[i]
		g.members, g.all, g.healthy, g.unchosen = 0, 0, 0, 0
		p.shares[i].Slack = uint64(p.settings.TolerancePercent) * weights.Million / 100
	}
	p.at = p.at[:0]
	for i := range req.NumEndpoints() {
		at := p.sorter.Group(req, i)
		p.at = append(p.at, at)
		e, g := req.Endpoint(i), &p.groups[at]
		c, w := e.Conditions(), uint64(e.Weight())
		g.members++
		if w > 0 {
			p.shares[at].Capacity += w
			unit, largest = weights.GCD(unit, w), max(largest, w)
		}
		if c&sdk.Terminating != 0 {
			continue
		}
		g.all++
		if weights.Unchosen(c) && w == 0 {
			g.unchosen++
			g.healthy++
		} else if c&sdk.Ready != 0 && w > 0 {
			g.healthy++
		}
	}
	unit, largest = max(unit, 1), max(largest, 1) // 0 if no endpoint has weight
	for i := range p.groups {
		s := &p.shares[i]
		s.Capacity = (s.Capacity + p.groups[i].unchosen*largest) / unit
	}
	return largest, unit, largest
}

// target computes the shares of the groups as Envoy does ("Priority levels" in its architecture overview): each group has the health
// score min(100 %, healthy ÷ all × overprovisioning) and gets so much of what is left by those before it. If the scores of all
// together are less than 100 %, they are normalized. It reports whether any group has a healthy endpoint.
func (p *plugin) target() bool {
	sum := uint64(0)
	for i := range p.groups {
		g, s := &p.groups[i], &p.shares[i]
		if g.healthy > 0 {
			s.Share = min(weights.Million, g.healthy*uint64(p.settings.OverprovisioningPercent)*weights.Million/100/g.all)
		}
		sum += s.Share
	}
	if sum == 0 {
		return false
	}
	left, last := uint64(weights.Million), 0
	for i := range p.shares {
		s := &p.shares[i]
		if sum < weights.Million {
			s.Share = s.Share * weights.Million / sum
		}
		s.Share = min(s.Share, left)
		if left -= s.Share; s.Share > 0 {
			last = i
		}
	}
	p.shares[last].Share += left // by rounding
	return true
}
