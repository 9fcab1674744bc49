package locality

// share computes the target of each zone in a group. With e a zone's part of the capacity and d its part of the demand, this zone
// keeps min(1, e ÷ d), and the others share the rest in proportion to their spare capacity max(0, e − d). Each zone then receives
// the difference to e, so every unit of capacity has the same load.
func (p *plugin) share(g int) {
	load, _ := p.tiers.Group(g)
	capacity, spare := 0.0, 0.0
	for _, c := range load {
		capacity += c
	}
	if capacity == 0 {
		return
	}
	parts := func(i int) (e, d float64) { return load[i] / capacity, p.zones[i].demand / p.demand }
	for i := range load {
		if e, d := parts(i); i != p.nodeZone {
			spare += max(0, e-d)
		}
	}
	kept := 0.0
	if e, d := parts(p.nodeZone); e > 0 {
		kept = 1
		if e < d && spare > rounding {
			kept = e / d
		}
	}
	for i := range load {
		e, d := parts(i)
		part := kept
		switch {
		case i == p.nodeZone:
		case spare > rounding:
			part = max(0, e-d) * (1 - kept) / spare
		case load[p.nodeZone] > 0: // no spare capacity anywhere: only rounding keeps this zone below 1
			part = 0
		default: // this zone has no endpoints, and hardly any demand
			part = e
		}
		p.tiers.SetTarget(g*p.tiers.Count+i, part)
	}
}

// rounding is more than the errors of sums.
const rounding = 1e-9
