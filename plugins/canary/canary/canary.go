// Package canary implements the plugin canary: groups of endpoints, such as those of a new version, get fixed shares of new
// connections, however many endpoints they have.
package canary

import (
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin has no state except its settings: a decision follows from the request alone.
type plugin struct {
	settings settings
	sorter   weights.Sorter
	groups   []group
	shares   weights.Groups // of groups

	at []int // group of each endpoint
}

// group is a group of endpoints; the last one has those of no other group.
type group struct {
	name  string
	share uint64 // of new connections, in millionths

	reason   sdk.ReasonID
	permille uint64 // of text
	text     string // last reason
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Keys implements sdk.Keyer.
func (p *plugin) Keys() []string { return p.sorter.Keys() }

// Decide multiplies the weights of the endpoints of each group.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	unit, largest := p.count(req)
	if !p.setShares() {
		reason := resp.AddReason("weights kept: only groups with 0 % have endpoints")
		for i := range req.NumEndpoints() {
			if req.Endpoint(i).Weight() > 0 {
				resp.SetReasonID(i, reason)
			}
		}
		return nil
	}
	p.shares.ChooseMultipliers(weights.Limits{MaxTotal: uint64(p.settings.MaxTotal), Largest: largest / unit, Least: 1})
	p.setReasons(resp)
	for i, g := range p.at {
		if w := uint64(req.Endpoint(i).Weight()); w > 0 {
			resp.SetWeight(i, int(w/unit*p.shares[g].Multiplier))
			resp.SetReasonID(i, p.groups[g].reason)
		}
	}
	return nil
}

// count sums up the weights of each group, and returns the greatest common divisor of all weights and the largest.
func (p *plugin) count(req *sdk.Request) (unit, largest uint64) {
	p.shares = append(p.shares[:0], make(weights.Groups, len(p.groups))...)
	p.at = p.at[:0]
	for i := range req.NumEndpoints() {
		w, at := uint64(req.Endpoint(i).Weight()), 0
		if w > 0 {
			at = p.sorter.Group(req, i)
			p.shares[at].Capacity += w
			unit, largest = weights.GCD(unit, w), max(largest, w)
		}
		p.at = append(p.at, at)
	}
	unit = max(unit, 1) // 0 if no endpoint has weight
	for i := range p.shares {
		p.shares[i].Capacity /= unit
	}
	return unit, largest
}

// setShares computes the share of each group. A group without endpoints gives its share to the others, those of no group; if there
// are none, to all groups in proportion. It reports whether any group with endpoints has a share.
func (p *plugin) setShares() bool {
	sum, others := uint64(0), len(p.groups)-1
	for i := range p.groups {
		if s := &p.shares[i]; s.Capacity > 0 {
			s.Share = p.groups[i].share
			sum += s.Share
		}
	}
	if missing := weights.Million - sum; p.shares[others].Capacity > 0 {
		p.shares[others].Share += missing
		sum = weights.Million
	}
	if sum == 0 {
		return false
	}
	for i := range p.shares {
		s := &p.shares[i]
		s.Share = s.Share * weights.Million / sum
		s.Slack = s.Share * uint64(p.settings.TolerancePercent) / 100
	}
	return true
}

// setReasons sets the reasons of the groups. Formatting one costs a guest more than deciding a dozen endpoints, so it formats only
// those that have changed.
func (p *plugin) setReasons(resp *sdk.Response) {
	total := p.shares.Total()
	for i := range p.groups {
		g, s := &p.groups[i], &p.shares[i]
		if s.Capacity == 0 {
			continue
		}
		permille := (s.Multiplier*s.Capacity*2000 + total) / (2 * total)
		if g.text == "" || g.permille != permille {
			g.permille, g.text = permille, g.name+": "+percent(permille)
		}
		g.reason = resp.AddReason(g.text)
	}
}

// percent formats thousandths as percent.
func percent(permille uint64) string {
	text := strconv.FormatUint(permille/10, 10)
	if tenths := permille % 10; tenths > 0 {
		text += "." + strconv.FormatUint(tenths, 10)
	}
	return text + " %"
}
