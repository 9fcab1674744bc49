package zonespill

import "github.com/sluice-proxy/sluice/plugins/internal/weights"

const million = weights.Million

// shares computes the share of each zone in this node's new connections. With e a zone's part of the total capacity and d
// its part of the total demand, this zone keeps min(1, e ÷ d), and the others share the rest in proportion to their spare
// capacity max(0, e − d). Each zone then receives the difference to e, so every unit of capacity has the same load.
func (p *plugin) shares() {
	capacity, demand := uint64(0), p.demand
	for i := range p.zones {
		capacity += p.groups[i].Capacity
	}
	mine := &p.groups[p.nodeZone]
	kept := uint64(0)
	if e, d := mine.Capacity*million/capacity, p.zones[p.nodeZone].demand*million/demand; e >= d && e > 0 {
		kept = million
	} else if e > 0 {
		kept = e * million / d
	}
	spare := uint64(0)
	for i := range p.zones {
		g := &p.groups[i]
		e, d := g.Capacity*million/capacity, p.zones[i].demand*million/demand
		g.Share = e - min(e, d) // spare capacity, for now
		if i != p.nodeZone {
			spare += g.Share
		}
	}
	for i := range p.zones {
		g := &p.groups[i]
		switch {
		case spare > 0:
			g.Share = g.Share * (million - kept) / spare
		case mine.Capacity > 0: // no spare capacity anywhere: only rounding keeps this zone below 1
			kept = million
		default: // this zone has no endpoints, and its demand rounds to 0
			g.Share = g.Capacity * million / capacity
		}
	}
	mine.Share = kept
}
