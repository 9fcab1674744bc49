package zonespill

// million is the unit of shares. Integers, because a plan must be the same on every machine.
const million = 1_000_000

// shares computes the share of each zone in this node's new connections. With e a zone's part of the total capacity and d
// its part of the total demand, this zone keeps min(1, e ÷ d), and the others share the rest in proportion to their spare
// capacity max(0, e − d). Each zone then receives the difference to e, so every unit of capacity has the same load.
func (p *plugin) shares() {
	var capacity, demand uint64
	for i := range p.zones {
		capacity += p.zones[i].capacity
		demand += p.zones[i].demand
	}
	mine := &p.zones[p.nodeZone]
	kept := uint64(0)
	if e, d := mine.capacity*million/capacity, mine.demand*million/demand; e >= d && e > 0 {
		kept = million
	} else if e > 0 {
		kept = e * million / d
	}
	spare := uint64(0)
	for i := range p.zones {
		z := &p.zones[i]
		e, d := z.capacity*million/capacity, z.demand*million/demand
		z.share = e - min(e, d) // spare capacity, for now
		if i != p.nodeZone {
			spare += z.share
		}
	}
	for i := range p.zones {
		z := &p.zones[i]
		switch {
		case spare > 0:
			z.share = z.share * (million - kept) / spare
		case mine.capacity > 0: // no spare capacity anywhere: only rounding keeps this zone below 1
			kept = million
		default: // this zone has no endpoints, and its demand rounds to 0
			z.share = z.capacity * million / capacity
		}
	}
	mine.share = kept
}

// maxMultiplier bounds the search.
const maxMultiplier = 1000

// chooseMultipliers finds small integers, one per zone, that give the zones their shares: the smallest within the tolerance,
// or else the closest whose sum over all endpoints is at most maxTotal.
func (p *plugin) chooseMultipliers() {
	top := 0 // the zone with the largest share per endpoint
	for i := range p.zones {
		z, t := &p.zones[i], &p.zones[top]
		if z.capacity > 0 && (t.capacity == 0 || z.share*t.capacity > t.share*z.capacity) {
			top = i
		}
	}
	best, least := uint64(1), ^uint64(0)
	for n := uint64(1); n <= maxMultiplier; n++ {
		total := p.setMultipliers(top, n)
		if n > 1 && (total > uint64(p.settings.MaxTotal) || n*p.largest > maxWeight) {
			break
		}
		if off := p.maxError(total); off < least {
			best, least = n, off
		}
		if least <= uint64(p.settings.TolerancePercent)*million/100 {
			break
		}
	}
	p.setMultipliers(top, best)
}

// maxWeight is the largest weight of an endpoint.
const maxWeight = 65535

// setMultipliers sets the multiplier of zone top to n and the others in proportion, and returns the sum of all weights.
func (p *plugin) setMultipliers(top int, n uint64) (total uint64) {
	t := p.zones[top]
	for i := range p.zones {
		z := &p.zones[i]
		z.multiplier = 0
		if z.capacity > 0 {
			per := t.share * z.capacity
			z.multiplier = (n*z.share*t.capacity + per/2) / per
		}
		total += z.multiplier * z.capacity
	}
	return total
}

// maxError returns the largest deviation of a zone from its share, in millionths.
func (p *plugin) maxError(total uint64) (most uint64) {
	for i := range p.zones {
		z := &p.zones[i]
		got := z.multiplier * z.capacity * million / total
		most = max(most, got-min(got, z.share), z.share-min(got, z.share))
	}
	return most
}
