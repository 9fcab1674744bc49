package zonespill

import "github.com/sluice-proxy/sluice/sdk"

// zone is what is known of a zone while a request is decided.
type zone struct {
	id         sdk.StringID
	demand     uint64 // Nodes, or millicores
	ready      int64  // endpoints that are ready and may have weight
	capacity   uint64 // the sum of its endpoints' weights, in units
	share      uint64 // of this node's new connections that it should get, in millionths
	multiplier uint64 // by what the weights of its endpoints are multiplied
	reason     sdk.ReasonID

	unchosen uint64 // ready endpoints that the default rules did not choose
}

// maxDemand keeps sums within 64 bits.
const maxDemand = 1 << 40

// collect fills p.zones, row by row like the zone table. It gives the weight of ready endpoints that came with none
// because the default rules did not choose them, and, when nothing can be decided, why.
func (p *plugin) collect(req *sdk.Request) (ref uint64, why string) {
	if req.NodeZone() == sdk.NoString {
		return 0, "default kept: this node's zone is unknown"
	}
	p.zones = p.zones[:0]
	all := uint64(0)
	for i := range req.NumZones() {
		z := req.Zone(i)
		demand := uint64(z.Nodes)
		if p.settings.Demand == demandCPU {
			if demand = min(z.MilliCPU, maxDemand); demand == 0 && z.Nodes > 0 {
				return 0, "default kept: the CPU of zone " + req.Text(z.Name) + " is unknown"
			}
		}
		p.zones = append(p.zones, zone{id: z.Name, demand: demand})
		all += demand
	}
	if p.nodeZone = req.NodeZoneIndex(); p.nodeZone < 0 || p.nodeZone >= len(p.zones) {
		p.nodeZone = len(p.zones)
		p.zones = append(p.zones, zone{id: req.NodeZone()})
	}
	if why := p.count(req); why != "" {
		return 0, why
	}
	if all == 0 {
		return 0, "default kept: no zone has a Node"
	}
	return p.normalizeCapacity(), ""
}

// count adds up each zone's endpoints and weights, and finds the greatest weight and the greatest divisor of all.
func (p *plugin) count(req *sdk.Request) (why string) {
	ready, last := int64(0), uint64(0)
	p.unit, p.largest = 0, 0
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		c, w := e.Conditions(), uint64(e.Weight())
		if w == 0 && !isReadyUnchosen(c) {
			continue
		}
		at := e.ZoneIndex()
		if uint(at) >= uint(len(p.zones)) {
			return "default kept: an endpoint's zone is unknown"
		}
		z := &p.zones[at]
		if c&(sdk.Ready|sdk.Terminating) == sdk.Ready {
			z.ready++
			ready++
		}
		if w == 0 {
			z.unchosen++
			continue
		}
		z.capacity += w
		if w != last {
			p.unit, p.largest, last = gcd(p.unit, w), max(p.largest, w), w
		}
	}
	if ready == 0 {
		return "default kept: no endpoint is ready"
	}
	return ""
}

// normalizeCapacity gives endpoints that were passed over the largest weight of all, and counts capacity in the common divisor.
func (p *plugin) normalizeCapacity() (ref uint64) {
	p.unit, p.largest = max(p.unit, 1), max(p.largest, 1) // 0 when all were passed over
	ref = p.largest
	for i := range p.zones {
		z := &p.zones[i]
		z.capacity = (z.capacity + z.unchosen*ref) / p.unit
	}
	p.largest /= p.unit
	return ref
}

// isReadyUnchosen tells a ready endpoint that the default rules passed over, as they do with hints to other zones: this plugin
// weighs zones itself, so it counts. A chosen one that came without weight was left out by a plugin before, and stays
// so.
func isReadyUnchosen(c sdk.Conditions) bool {
	return c&(sdk.Ready|sdk.Terminating|sdk.Chosen) == sdk.Ready
}

// baseWeight is the weight of an endpoint among those of its own zone.
func baseWeight(e sdk.Endpoint, ref uint64) uint64 {
	if w := e.Weight(); w > 0 {
		return uint64(w)
	}
	if isReadyUnchosen(e.Conditions()) {
		return ref
	}
	return 0
}

// zoneBelowMinimum gives the index of a zone that has ready endpoints, but too few of them to act, or -1.
func (p *plugin) zoneBelowMinimum() int {
	for i := range p.zones {
		if n := p.zones[i].ready; n > 0 && n < p.settings.MinEndpointsPerZone {
			return i
		}
	}
	return -1
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
