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

	at    []int    // group of each endpoint in the response
	parts []uint32 // of the groups of the response: the groups of the settings, for each group of the request
}

// group is a group of endpoints; the last one has those of no other group.
type group struct {
	name string
	part uint32 // of new connections, in millionths

	reason sdk.ReasonID
	shown  uint32 // part in text
	text   string // last reason
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Keys implements sdk.Keyer.
func (p *plugin) Keys() []string { return p.sorter.Keys() }

// Decide sets the parts of the groups. If a previous plugin has set groups, it divides each of them, unless there would be too
// many.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	n := len(p.groups)
	if req.NumGroups()*n > sdk.MaxGroups {
		reason := resp.AddReason("too many groups to divide")
		for i := range req.NumEndpoints() {
			resp.SetReasonID(i, reason)
		}
		return nil
	}
	p.parts = append(p.parts[:0], make([]uint32, req.NumGroups()*n)...)
	p.at = append(p.at[:0], make([]int, req.NumEndpoints())...)
	for i := range p.at {
		if e := req.Endpoint(i); e.Capacity() > 0 {
			p.at[i] = e.Group()*n + p.sorter.Group(req, i)
			p.parts[p.at[i]] = 1
		}
	}
	for before := range req.NumGroups() {
		own := p.parts[before*n:][:n]
		p.divide(own)
		p.addReasons(resp, own)
		for i, at := range p.at {
			if e := req.Endpoint(i); e.Capacity() > 0 && e.Group() == before {
				resp.SetGroup(i, at)
				resp.SetReasonID(i, p.groups[at-before*n].reason)
			}
		}
		for i := range own {
			own[i] = uint32((uint64(own[i])*uint64(req.GroupPart(before)) + sdk.One - 1) / sdk.One)
		}
	}
	resp.SetGroups(p.parts...)
	return nil
}

// divide replaces 1, for a group that has endpoints, by its part. A group without gives its part to the others, those of no
// group; if there are none, to all groups in proportion.
func (p *plugin) divide(parts []uint32) {
	sum, others := uint32(0), len(parts)-1
	for i := range parts[:others] {
		parts[i] *= p.groups[i].part
		sum += parts[i]
	}
	if parts[others] > 0 {
		parts[others] = sdk.One - sum
	} else if sum > 0 {
		for i := range parts {
			parts[i] = uint32(uint64(parts[i]) * sdk.One / uint64(sum))
		}
	}
}

// addReasons adds the reasons of the groups. Formatting one costs a guest more than deciding a dozen endpoints, so it formats
// only those that have changed.
func (p *plugin) addReasons(resp *sdk.Response, parts []uint32) {
	for i := range p.groups {
		g := &p.groups[i]
		if g.text == "" || g.shown != parts[i] {
			g.shown, g.text = parts[i], g.name+": "+percent(parts[i])
		}
		g.reason = resp.AddReason(g.text)
	}
}

// percent formats millionths as percent.
func percent(part uint32) string {
	permille := uint64(part+500) / 1000
	text := strconv.FormatUint(permille/10, 10)
	if tenths := permille % 10; tenths > 0 {
		text += "." + strconv.FormatUint(tenths, 10)
	}
	return text + " %"
}
