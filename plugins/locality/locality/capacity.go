package locality

import "github.com/sluice-proxy/sluice/sdk"

// byCapacity has the data of decisions by capacity.
type byCapacity struct {
	configuredTotal uint64 // of demandByZone

	zones       []zone
	zoneNames   []uint32 // hashes of the names of zones
	nodeZone    int      // index of the zone of this node
	demand      float64  // of all zones
	texts       map[textKey]string
	zoneCaches  []zoneCache
	zoneReasons []zoneReason
}

// decideByCapacity sets shares in the cluster pool. In the local pool all endpoints are in one zone: nothing changes.
func (p *plugin) decideByCapacity(req *sdk.Request, resp *sdk.Response) {
	if req.Pool() != sdk.PoolCluster || req.NumEndpoints() == 0 {
		return
	}
	if why := p.collect(req); why != "" {
		keepDefault(req, resp, why)
		return
	}
	p.state.Read(req.State())
	acts, wait := p.mode(int64(req.Now()))
	if acts {
		for g := range req.NumGroups() {
			p.share(g)
		}
		if hold := p.follow(req, p.zoneNames); wait == 0 || hold > 0 && hold < wait {
			wait = hold
		}
		p.setZoneReasons(req, resp)
		p.tiers.SetShares(resp, req, p.reasons)
	} else {
		p.state.Target, p.state.Since = p.state.Target[:0], 0
		keepDefault(req, resp, p.defaultReason(req))
	}
	p.finish(resp, wait)
}

// mode reports whether to act: if every zone has enough endpoints. A change of mode takes effect after hold only,
// so that a rollout which briefly removes the endpoints of a zone changes nothing. The first decision does not wait.
func (p *plugin) mode(now int64) (acts bool, wait int64) {
	wanted := modeOf(p.zoneBelowMinimum() < 0)
	if s := &p.state; s.Mode == modeNone || s.Mode == wanted {
		s.Mode, s.ModeSince = wanted, 0
	} else {
		if s.ModeSince <= 0 || s.ModeSince > now {
			s.ModeSince = now
		}
		if wait = s.ModeSince + p.settings.HoldSeconds*1000 - now; wait <= 0 {
			s.Mode, s.ModeSince, wait = wanted, 0, 0
		}
	}
	return p.state.Mode == modeActive, wait
}

// Modes. modeNone: no decision yet.
const (
	modeNone = iota
	modeActive
	modeDefault
)

func modeOf(enough bool) uint8 {
	if enough {
		return modeActive
	}
	return modeDefault
}

// keepDefault keeps all shares and sets the reason.
func keepDefault(req *sdk.Request, resp *sdk.Response, why string) {
	reason := resp.AddReason(why)
	for i := range req.NumEndpoints() {
		resp.SetReasonID(i, reason)
	}
}
