package stageddrain

import "github.com/sluice-proxy/sluice/sdk"

// What a draining endpoint would have had is what its peers have: the endpoints that do not terminate and are like it.
// The default rules give it 0 as soon as it terminates, so its own weight does not tell.

// alike are the conditions that tell peers apart, beside the zone: with hints, other nodes' endpoints have no weight.
const alike = sdk.HintedZone | sdk.HintedNode

// group sums up the peers of one kind.
type group struct {
	zone  sdk.ID
	like  sdk.Conditions
	sum   int // of their weights
	count int
}

func (p *plugin) gather(req *sdk.Request) {
	p.groups = p.groups[:0]
	last := 0
	for i := range req.Len() {
		e := req.Endpoint(i)
		c := e.Conditions()
		if c.Has(sdk.Terminating) {
			continue
		}
		zone, like := e.Zone(), c&alike
		if last >= len(p.groups) || p.groups[last].zone != zone || p.groups[last].like != like {
			last = p.find(zone, like)
		}
		p.groups[last].sum += e.Weight()
		p.groups[last].count++
	}
}

func (p *plugin) find(zone sdk.ID, like sdk.Conditions) int {
	for i := range p.groups {
		if p.groups[i].zone == zone && p.groups[i].like == like {
			return i
		}
	}
	p.groups = append(p.groups, group{zone: zone, like: like})
	return len(p.groups) - 1
}

// peers sums up the peers of e: those of its zone that are hinted alike; if there are none, those of its zone; if there
// are none, all.
func (p *plugin) peers(e sdk.Endpoint) group {
	var inZone, all group
	zone, like := e.Zone(), e.Conditions()&alike
	for _, g := range p.groups {
		if g.zone == zone && g.like == like {
			return g
		}
		if g.zone == zone {
			inZone.sum, inZone.count = inZone.sum+g.sum, inZone.count+g.count
		}
		all.sum, all.count = all.sum+g.sum, all.count+g.count
	}
	if inZone.count > 0 {
		return inZone
	}
	return all
}
