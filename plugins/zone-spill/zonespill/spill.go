// Package zonespill implements the plugin zone-spill. It keeps new connections in the zone of the client as far as the zone's
// share of the endpoints covers its share of the demand, and sends the rest to zones with spare endpoints. If all nodes do
// so, all endpoints have the same load.
package zonespill

import (
	"github.com/sluice-proxy/sluice/plugins/internal/tiers"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: history is in the state of the request.
type plugin struct {
	settings settings

	zones           []zone
	names           []uint32 // hashes of the names of zones
	nodeZone        int      // index of the zone of this node
	demand          float64  // of all zones
	configuredTotal uint64   // of demandByZone
	tiers           tiers.Tiers
	reasons         []sdk.ReasonID // of the zones of each group
	state           tiers.State
	buf             []byte
	texts           map[textKey]string
	zoneCaches      []zoneCache
	reasonCaches    []reasonCache
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Needs implements sdk.Needer: Nodes measure the demand of a zone, unless settings give it.
func (p *plugin) Needs() sdk.Need {
	if p.settings.DemandByZone != nil {
		return 0
	}
	return sdk.NeedNodes
}

// Decide sets shares in the cluster pool. In the local pool all endpoints are in one zone: nothing changes.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Pool() != sdk.PoolCluster || req.NumEndpoints() == 0 {
		return nil
	}
	if why := p.collect(req); why != "" {
		keepDefault(req, resp, why)
		return nil
	}
	p.state.Read(req.State())
	acts, wait := p.mode(int64(req.Now()))
	if acts {
		for g := range req.NumGroups() {
			p.share(g)
		}
		hold := p.tiers.Follow(&p.state, p.names, int64(req.Now()), tiers.Rule{
			Hysteresis: p.settings.HysteresisPercent, Hold: p.settings.HoldSeconds * 1000,
		})
		if wait == 0 || hold > 0 && hold < wait {
			wait = hold
		}
		p.setReasons(req, resp)
		p.tiers.SetShares(resp, req, p.reasons)
	} else {
		p.state.Target, p.state.Since = p.state.Target[:0], 0
		keepDefault(req, resp, p.defaultReason(req))
	}
	if wait > 0 {
		resp.RequeueAfter(sdk.Duration(wait) * sdk.Millisecond)
	}
	p.buf = p.state.Append(p.buf[:0])
	resp.SetState(p.buf)
	return nil
}

// mode reports whether to act: if every zone has enough endpoints. A change of mode takes effect after holdSeconds only,
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
