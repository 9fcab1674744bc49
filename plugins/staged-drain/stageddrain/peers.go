package stageddrain

import "github.com/sluice-proxy/sluice/sdk"

// What a draining endpoint would have had is what its peers have: the endpoints that do not terminate and are like it.
// The default rules give it 0 as soon as it terminates, so its own weight does not tell.

// group sums up endpoints that do not terminate and are alike: in one zone, and hinted alike, because with hints other
// nodes' endpoints have no weight.
type group struct {
	sum   int // of their weights
	count int
}

// hintKinds is how many kinds of hints there are: to this node's zone or not, to this node or not.
const hintKinds = 4

// groupIndex is where the group of endpoints like e is: hints places for each row of the zone table, the first ones being
// for zones that are not in it.
func (p *plugin) groupIndex(e sdk.Endpoint) int {
	at := (e.ZoneIndex() + 1) * hintKinds
	if at >= len(p.groups) {
		at = 0
	}
	return at + int(e.Conditions()/sdk.HintedZone%hintKinds)
}

// sumGroups sums up all groups. It gives by what all weights must be multiplied so that every percentage in use is a whole
// weight: 2 for 50 %, 10 for 10 %, 1 when all drains are over. Larger sums would cost the data plane for nothing.
func (p *plugin) sumGroups(req *sdk.Request) (scale int) {
	p.groups = append(p.groups[:0], make([]group, (req.NumZones()+1)*hintKinds)...)
	common := 100
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		if e.Terminating() {
			percent, _, _ := p.currentStage(req, e)
			common = gcd(common, percent)
			continue
		}
		g := &p.groups[p.groupIndex(e)]
		g.sum += e.Weight()
		g.count++
	}
	return 100 / common
}

// peers sums up the peers of e: those of its zone that are hinted alike; if there are none, those of its zone; if there
// are none, all.
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
