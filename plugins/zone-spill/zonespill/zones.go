package zonespill

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// zone is the data of a zone during a decision.
type zone struct {
	id     sdk.StringID
	demand uint64 // Nodes, millicores, or as in the settings
	ready  int64  // ready endpoints that may have weight
	sum    uint64 // of the weights of its endpoints

	multiplier uint64
	reason     sdk.ReasonID

	unchosen uint64 // ready endpoints that the default rules did not choose
}

// maxDemand prevents overflow of 64-bit sums.
const maxDemand = 1 << 40

// collect fills p.zones and p.groups, in the order of the zone table. It returns the weight for ready endpoints that the default rules
// did not choose or, if no decision is possible, the reason.
func (p *plugin) collect(req *sdk.Request) (ref uint64, why string) {
	if req.NodeZone() == sdk.NoString {
		return 0, "default kept: this node's zone is unknown"
	}
	p.zones, p.demand = p.zones[:0], 0
	for i := range req.NumZones() {
		z := req.Zone(i)
		demand := uint64(z.Nodes)
		switch {
		case p.settings.DemandByZone != nil:
			demand = p.configuredDemand(req, i, z.Name)
		case p.settings.Demand == demandCPU:
			if demand = min(z.MilliCPU, maxDemand); demand == 0 && z.Nodes > 0 {
				return 0, "default kept: the CPU of zone " + req.Text(z.Name) + " is unknown"
			}
		}
		p.zones = append(p.zones, zone{id: z.Name, demand: demand})
		p.demand += demand
	}
	if p.settings.DemandByZone != nil {
		p.demand = p.configuredTotal // also that of zones that the request does not have
	}
	if p.nodeZone = req.NodeZoneIndex(); p.nodeZone < 0 || p.nodeZone >= len(p.zones) {
		p.nodeZone = len(p.zones)
		p.zones = append(p.zones, zone{id: req.NodeZone()})
	}
	slack := uint64(p.settings.TolerancePercent) * million / 100
	p.groups = p.groups[:0]
	for range p.zones {
		p.groups = append(p.groups, weights.Group{Slack: slack})
	}
	if why := p.count(req); why != "" {
		return 0, why
	}
	if p.demand == 0 {
		return 0, "default kept: no zone has a Node"
	}
	return p.normalizeCapacity(), ""
}

// configuredDemand returns the demand of row i of the zone table from the settings, 0 for a zone that they do not name.
func (p *plugin) configuredDemand(req *sdk.Request, i int, id sdk.StringID) uint64 {
	c := p.zoneCache(i)
	if c.demandOf != id || !c.demandKnown {
		c.demandOf, c.demandKnown, c.demand = id, true, uint64(p.settings.DemandByZone[req.Text(id)])
	}
	return c.demand
}

// count sums up the endpoints and weights of each zone, and finds the largest weight and the greatest common divisor.
func (p *plugin) count(req *sdk.Request) (why string) {
	ready, last := int64(0), uint64(0)
	p.unit, p.largest = 0, 0
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		c, w := e.Conditions(), uint64(e.Weight())
		if w == 0 && !weights.Unchosen(c) {
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
		z.sum += w
		if w != last {
			p.unit, p.largest, last = weights.GCD(p.unit, w), max(p.largest, w), w
		}
	}
	if ready == 0 {
		return "default kept: no endpoint is ready"
	}
	return ""
}

// normalizeCapacity counts each unchosen endpoint with the largest weight, and divides capacities by the common divisor.
func (p *plugin) normalizeCapacity() (ref uint64) {
	p.unit, p.largest = max(p.unit, 1), max(p.largest, 1) // 0 if no endpoint has weight
	ref = p.largest
	for i := range p.zones {
		z := &p.zones[i]
		p.groups[i].Capacity = (z.sum + z.unchosen*ref) / p.unit
	}
	p.largest /= p.unit
	return ref
}

// baseWeight returns the weight of an endpoint relative to those of its zone.
func baseWeight(e sdk.Endpoint, ref uint64) uint64 {
	if w := e.Weight(); w > 0 {
		return uint64(w)
	}
	if weights.Unchosen(e.Conditions()) {
		return ref
	}
	return 0
}

// zoneBelowMinimum returns the index of a zone with at least one but fewer than the minimum of ready endpoints, or -1.
func (p *plugin) zoneBelowMinimum() int {
	for i := range p.zones {
		if n := p.zones[i].ready; n > 0 && n < p.settings.MinEndpointsPerZone {
			return i
		}
	}
	return -1
}
