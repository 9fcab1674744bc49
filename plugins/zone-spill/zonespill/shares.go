package zonespill

// million is all of something, in millionths. Whole numbers, because a plan must be the same on every machine.
const million = 1_000_000

// shares finds how this node's new connections should be split among the zones. With e a zone's part of all capacity and
// d its part of all demand: this zone keeps min(1, e ÷ d), and the others share the rest by their spare capacity
// max(0, e − d). Each zone then receives what it lacks to e, so every unit of capacity has the same load.
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
		z.share = e - min(e, d) // its spare capacity, for now
		if i != p.nodeZone {
			spare += z.share
		}
	}
	for i := range p.zones {
		z := &p.zones[i]
		switch {
		case spare > 0:
			z.share = z.share * (million - kept) / spare
		case mine.capacity > 0: // nobody has anything to spare: this zone lacks nothing but what rounding took
			kept = million
		default: // a zone without demand or endpoints asks: its part is too small to have been counted
			z.share = z.capacity * million / capacity
		}
	}
	mine.share = kept
}

// maxMultiplier bounds the search for whole numbers.
const maxMultiplier = 1000

// chooseMultipliers finds small whole numbers, one for each zone, that give the zones their shares: the smallest ones that are within
// the tolerance, or else the closest whose sum over all endpoints a data plane can hold.
func (p *plugin) chooseMultipliers() {
	top := 0 // the zone whose endpoints get most each
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

// setMultipliers multiplies the zone at top by n and the others to match, and gives the sum of all endpoints' weights.
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

// maxError is by how much the share of a zone is off at most, in millionths.
func (p *plugin) maxError(total uint64) (most uint64) {
	for i := range p.zones {
		z := &p.zones[i]
		got := z.multiplier * z.capacity * million / total
		most = max(most, got-min(got, z.share), z.share-min(got, z.share))
	}
	return most
}
