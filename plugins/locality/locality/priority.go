package locality

import (
	"github.com/sluice-proxy/sluice/plugins/internal/tiers"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// byPriority has the data of decisions by priority.
type byPriority struct {
	sorter     weights.Sorter
	groupNames []string // of the groups of the settings, in order; the last one has all other endpoints
	hashes     []uint32 // of groupNames

	members      []members // of tiers
	groupReasons []groupReason
}

// members are the endpoints of a tier.
type members struct {
	count   uint64
	all     uint64 // those that do not terminate
	healthy uint64 // of all
}

func (p *plugin) decideByPriority(req *sdk.Request, resp *sdk.Response) {
	p.countMembers(req)
	for g := range req.NumGroups() {
		p.target(g)
	}
	p.state.Read(req.State())
	wait := p.follow(req, p.hashes)
	p.setGroupReasons(resp)
	p.tiers.SetShares(resp, req, p.reasons)
	p.finish(resp, wait)
}

// countMembers sums up the endpoints of each tier. An endpoint is healthy if it is ready and has capacity: a previous plugin that
// sets it to 0 knows that it is not. Terminating endpoints are neither: a scale-down is no failure.
func (p *plugin) countMembers(req *sdk.Request) {
	n := len(p.groupNames)
	p.tiers.Reset(req, n)
	p.members = append(p.members[:0], make([]members, len(p.tiers.Load))...)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		at := e.Group()*n + p.sorter.Group(req, i)
		if load := uint64(e.Capacity()) * uint64(tiers.Base(e)); load > 0 {
			p.tiers.Add(i, at, load)
		} else {
			p.tiers.Skip(i)
		}
		m := &p.members[at]
		m.count++
		if c := e.Conditions(); c&sdk.Terminating == 0 {
			m.all++
			if c&sdk.Ready != 0 && e.Capacity() > 0 {
				m.healthy++
			}
		}
	}
}

// target sets the targets of the tiers of a group as Envoy does ("Priority levels" in its architecture overview): each tier has
// the health score min(100 %, healthy ÷ all × overprovisioning) and gets so much of what is left by those before it. If the
// scores of all together are less than 100 %, they are normalized. Without a healthy endpoint there are no targets.
func (p *plugin) target(g int) {
	_, target := p.tiers.Group(g)
	sum := uint64(0)
	for i := range target {
		if m := &p.members[g*len(target)+i]; m.healthy > 0 {
			target[i] = uint32(min(sdk.One, m.healthy*uint64(p.settings.OverprovisioningPercent)*sdk.One/100/m.all))
			sum += uint64(target[i])
		}
	}
	if sum == 0 {
		return
	}
	left, last := uint32(sdk.One), 0
	for i := range target {
		if sum < sdk.One {
			target[i] = uint32(uint64(target[i]) * sdk.One / sum)
		}
		target[i] = min(target[i], left)
		if left -= target[i]; target[i] > 0 {
			last = i
		}
	}
	target[last] += left // by rounding
}
