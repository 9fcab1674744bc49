// Package zonespill implements the plugin zone-spill. It keeps new connections in the zone of the client as far as the zone's
// share of the endpoints covers its share of the demand, and sends the rest to zones with spare endpoints. If all nodes do
// so, all endpoints have the same load.
package zonespill

import (
	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: history is in the state of the request.
type plugin struct {
	settings settings

	zones           []zone
	groups          weights.Groups // of the endpoints of each zone
	nodeZone        int            // index of the zone of this node
	unit            uint64         // greatest common divisor of the endpoints' weights
	largest         uint64         // of these weights, in units
	demand          uint64         // of all zones
	configuredTotal uint64         // of demandByZone
	prev, next      state
	buf             []byte
	texts           map[textKey]string
	zoneCaches      []zoneCache
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

// Decide sets weights in the cluster pool. In the local pool all endpoints are in one zone: nothing changes.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Pool() != sdk.PoolCluster || req.NumEndpoints() == 0 {
		return nil
	}
	ref, why := p.collect(req)
	if why != "" {
		keepDefault(req, resp, why)
		return nil
	}
	p.prev.read(req.State())
	acts, wait := p.mode(req)
	if wait > 0 {
		resp.RequeueAfter(wait)
	}
	if acts {
		p.shares()
		if !p.reuseMultipliers(req) {
			p.groups.ChooseMultipliers(weights.Limits{MaxTotal: uint64(p.settings.MaxTotal), Largest: p.largest})
			p.saveMultipliers(req)
		}
		p.setWeights(req, resp, ref)
	} else {
		keepDefault(req, resp, p.defaultReason(req))
	}
	p.buf = p.next.append(p.buf[:0])
	resp.SetState(p.buf)
	return nil
}

// mode reports whether to act: if every zone has enough endpoints. A change of mode takes effect after holdSeconds only,
// so that a rollout which briefly removes the endpoints of a zone changes nothing. The first decision does not wait.
func (p *plugin) mode(req *sdk.Request) (acts bool, wait sdk.Duration) {
	enough := p.zoneBelowMinimum() < 0
	now := int64(req.Now())
	p.next.reset()
	switch {
	case p.prev.mode == modeNone:
		p.next.mode = modeOf(enough)
	case p.prev.mode == modeOf(enough):
		p.next.mode = p.prev.mode
	default:
		since := p.prev.since
		if since == 0 || since > now {
			since = now
		}
		left := since + p.settings.HoldSeconds*1000 - now
		if left <= 0 {
			p.next.mode = modeOf(enough)
			break
		}
		p.next.mode, p.next.since = p.prev.mode, since
		wait = sdk.Duration(left) * sdk.Millisecond
	}
	return p.next.mode == modeActive, wait
}

// keepDefault keeps all weights and sets the reason.
func keepDefault(req *sdk.Request, resp *sdk.Response, why string) {
	reason := resp.AddReason(why)
	for i := range req.NumEndpoints() {
		resp.SetReasonID(i, reason)
	}
}

// setWeights multiplies the weight of each endpoint by the multiplier of its zone.
func (p *plugin) setWeights(req *sdk.Request, resp *sdk.Response, ref uint64) {
	p.setReasons(req, resp)
	last, units := uint64(0), uint64(0)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		w := baseWeight(e, ref)
		if w == 0 {
			continue // it has none
		}
		if w != last {
			last, units = w, w/p.unit
		}
		z := &p.zones[e.ZoneIndex()]
		resp.SetWeight(i, int(units*z.multiplier))
		resp.SetReasonID(i, z.reason)
	}
}
