package zonespill

import "github.com/sluice-proxy/sluice/sdk"

// zone is what is known of a zone while a request is decided.
type zone struct {
	id       sdk.ID
	demand   uint64 // Nodes, or millicores
	ready    int64  // endpoints that are ready and may have weight
	capacity uint64 // the sum of its endpoints' weights, in units
	share    uint64 // of this node's new connections that it should get, in millionths
	times    uint64 // by what the weights of its endpoints are multiplied
	text     string // the reason for its endpoints
}

// maxDemand keeps sums within 64 bits.
const maxDemand = 1 << 40

// collect fills p.zones. It gives the weight of ready endpoints that came with none because the default rules did not
// choose them, and, when nothing can be decided, why.
func (p *plugin) collect(req *sdk.Request) (ref uint64, why string) {
	if req.Zone() == sdk.None {
		return 0, "default kept: this node's zone is unknown"
	}
	p.zones = p.zones[:0]
	for i := range req.Zones() {
		z := req.ZoneAt(i)
		if z.ID == sdk.None {
			continue
		}
		demand := uint64(z.Nodes)
		if p.settings.Demand == demandCPU {
			if demand = min(z.MilliCPU, maxDemand); demand == 0 && z.Nodes > 0 {
				return 0, "default kept: the CPU of zone " + req.String(z.ID) + " is unknown"
			}
		}
		p.zones = append(p.zones, zone{id: z.ID, demand: demand})
	}
	p.mine = p.index(req.Zone(), 0)
	if why := p.count(req); why != "" {
		return 0, why
	}
	ref = p.largest
	p.units(req, ref)
	demand := uint64(0)
	for i := range p.zones {
		demand += p.zones[i].demand
	}
	if demand == 0 {
		return 0, "default kept: no zone has a Node"
	}
	return ref, ""
}

// count finds the ready endpoints of each zone and the largest weight.
func (p *plugin) count(req *sdk.Request) (why string) {
	ready, at := int64(0), 0
	p.largest = 0
	for i := range req.Len() {
		e := req.Endpoint(i)
		c := e.Conditions()
		w := uint64(e.Weight())
		if w == 0 && !takesIn(c) {
			continue
		}
		if e.Zone() == sdk.None {
			return "default kept: an endpoint's zone is unknown"
		}
		p.largest = max(p.largest, w)
		at = p.index(e.Zone(), at)
		if c&sdk.Ready != 0 && c&sdk.Terminating == 0 {
			p.zones[at].ready++
			ready++
		}
	}
	if ready == 0 {
		return "default kept: no endpoint is ready"
	}
	p.largest = max(p.largest, 1)
	return ""
}

// units finds the greatest common divisor of all weights, and each zone's capacity in it.
func (p *plugin) units(req *sdk.Request, ref uint64) {
	p.unit = 0
	at, last := 0, uint64(0)
	for i := range req.Len() {
		e := req.Endpoint(i)
		w := natural(e, ref)
		if w == 0 {
			continue
		}
		if w != last {
			p.unit, last = gcd(p.unit, w), w
		}
		at = p.index(e.Zone(), at)
		p.zones[at].capacity += w
	}
	for i := range p.zones {
		p.zones[i].capacity /= p.unit
	}
	p.largest /= p.unit
}

// takesIn tells a ready endpoint that the default rules passed over, as they do with hints to other zones: this plugin
// weighs zones itself, so it counts. A chosen one that came without weight was left out by a plugin before, and stays
// so.
func takesIn(c sdk.Conditions) bool {
	return c&(sdk.Ready|sdk.Terminating|sdk.Chosen) == sdk.Ready
}

// natural is the weight of an endpoint among those of its own zone.
func natural(e sdk.Endpoint, ref uint64) uint64 {
	if w := e.Weight(); w > 0 {
		return uint64(w)
	}
	if takesIn(e.Conditions()) {
		return ref
	}
	return 0
}

// index finds a zone, first at the place where the last one was. A zone that is not in the table is added.
func (p *plugin) index(id sdk.ID, hint int) int {
	if hint < len(p.zones) && p.zones[hint].id == id {
		return hint
	}
	for i := range p.zones {
		if p.zones[i].id == id {
			return i
		}
	}
	p.zones = append(p.zones, zone{id: id})
	return len(p.zones) - 1
}

// few gives the index of a zone that has ready endpoints, but too few of them to act, or -1.
func (p *plugin) few() int {
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
