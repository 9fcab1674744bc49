package stageddrain

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// The reference for the weight of a draining endpoint is its peers: similar endpoints that do not terminate. Its own weight
// is not usable, as the default rules set it to 0 as soon as it terminates.

// group is the sum over endpoints that do not terminate, in the same zone and with the same hints: with hints, endpoints
// hinted elsewhere have no weight.
type group struct {
	sum   int // of their weights
	count int
}

// hintKinds is the number of combinations of hints: to this node's zone or not, to this node or not.
const hintKinds = 4

// groupIndex returns the index of the group of e: hintKinds groups per row of the zone table, after those for endpoints of zones
// that are not in the table.
func (p *plugin) groupIndex(e sdk.Endpoint) int {
	at := (e.ZoneIndex() + 1) * hintKinds
	if at >= len(p.groups) {
		at = 0
	}
	return at + int(e.Conditions()/sdk.HintedZone%hintKinds)
}

// sumGroups sums up all groups. It returns the smallest factor for all weights that makes every percentage in use an integer:
// 2 for 50 %, 10 for 10 %, 1 if all drains are over. Larger sums would cost the data plane more.
func (p *plugin) sumGroups(req *sdk.Request) (scale int) {
	p.groups = append(p.groups[:0], make([]group, (req.NumZones()+1)*hintKinds)...)
	common := 100
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if e.Terminating() {
			percent, _, _ := p.currentStage(req, e)
			common = weights.GCD(common, percent)
			continue
		}
		g := &p.groups[p.groupIndex(e)]
		g.sum += e.Weight()
		g.count++
	}
	return 100 / common
}

// peers returns the sum over the peers of e: those of its zone with the same hints; if there are none, those of its zone; if
// there are none, all.
func (p *plugin) peers(e sdk.Endpoint) group {
	at := p.groupIndex(e)
	if g := p.groups[at]; g.count > 0 {
		return g
	}
	at -= at % hintKinds
	if g := sum(p.groups[at : at+hintKinds]); g.count > 0 {
		return g
	}
	return sum(p.groups)
}

func sum(groups []group) (all group) {
	for _, g := range groups {
		all.sum, all.count = all.sum+g.sum, all.count+g.count
	}
	return all
}
