package locality

import (
	"github.com/sluice-proxy/sluice/plugins/internal/tiers"
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// zone is the data of a zone during a decision.
type zone struct {
	id     sdk.StringID
	demand float64 // Nodes, millicores, or as in the settings
	ready  int64   // ready endpoints with capacity
}

// collect fills p.zones, in the order of the zone table, and p.tiers. If no decision is possible, it returns the reason.
func (p *plugin) collect(req *sdk.Request) (why string) {
	if req.NodeZone() == sdk.NoString {
		return "default kept: this node's zone is unknown"
	}
	p.zones, p.zoneNames, p.demand = p.zones[:0], p.zoneNames[:0], 0
	for i := range req.NumZones() {
		z := req.Zone(i)
		demand := uint64(z.Nodes)
		switch {
		case p.settings.DemandByZone != nil:
			demand = p.configuredDemand(req, i, z.Name)
		case p.settings.Demand == demandCPU:
			if demand = z.MilliCPU; demand == 0 && z.Nodes > 0 {
				return "default kept: the CPU of zone " + req.Text(z.Name) + " is unknown"
			}
		}
		p.zones = append(p.zones, zone{id: z.Name, demand: float64(demand)})
		p.demand += float64(demand)
	}
	if p.settings.DemandByZone != nil {
		p.demand = float64(p.configuredTotal) // also that of zones that the request does not have
	}
	if p.nodeZone = req.NodeZoneIndex(); p.nodeZone < 0 || p.nodeZone >= len(p.zones) {
		p.nodeZone = len(p.zones)
		p.zones = append(p.zones, zone{id: req.NodeZone()})
	}
	for i := range p.zones {
		p.zoneNames = append(p.zoneNames, p.hash(req, i))
	}
	p.zoneNames[p.nodeZone] ^= ownZone
	if why := p.count(req); why != "" {
		return why
	}
	if p.demand == 0 {
		return "default kept: no zone has a Node"
	}
	return ""
}

// ownZone makes the zone of this node another name in the state: targets are those of a node in this zone.
const ownZone = 0x5A5A5A5A

// configuredDemand returns the demand of row i of the zone table from the settings, 0 for a zone that they do not name.
func (p *plugin) configuredDemand(req *sdk.Request, i int, id sdk.StringID) uint64 {
	c := p.zoneCache(i)
	if c.demandOf != id || !c.demandKnown {
		c.demandOf, c.demandKnown, c.demand = id, true, uint64(p.settings.DemandByZone[req.Text(id)])
	}
	return c.demand
}

// count sums up the endpoints of each zone.
func (p *plugin) count(req *sdk.Request) (why string) {
	p.tiers.Reset(req, len(p.zones))
	ready, groups := false, req.NumGroups() > 1
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		load := e.Load()
		if load == 0 {
			load = uint64(e.Capacity()) * uint64(tiers.Base(e))
		}
		if load == 0 {
			p.tiers.Skip(i)
			continue
		}
		at := e.ZoneIndex()
		if uint(at) >= uint(len(p.zones)) {
			return "default kept: an endpoint's zone is unknown"
		}
		if e.Conditions()&(sdk.Ready|sdk.Terminating) == sdk.Ready {
			p.zones[at].ready++
			ready = true
		}
		if groups {
			at += e.Group() * len(p.zones)
		}
		p.tiers.Add(i, at, load)
	}
	if !ready {
		return "default kept: no endpoint is ready"
	}
	return ""
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

// zoneCache caches the hash of the name of a row of the zone table, which seldom changes.
type zoneCache struct {
	id   sdk.StringID
	hash uint32

	demandOf    sdk.StringID // demand is that of this zone, if it is known
	demandKnown bool
	demand      uint64 // by the settings
}

// hash returns the FNV-1a hash of the name of zone i.
func (p *plugin) hash(req *sdk.Request, i int) uint32 {
	n := p.zoneCache(i)
	if id := p.zones[i].id; n.id != id {
		n.id, n.hash = id, weights.FNV(req.Text(id))
	}
	return n.hash
}

func (p *plugin) zoneCache(i int) *zoneCache {
	for len(p.zoneCaches) <= i {
		p.zoneCaches = append(p.zoneCaches, zoneCache{id: sdk.NoString})
	}
	return &p.zoneCaches[i]
}
