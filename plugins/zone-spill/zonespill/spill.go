// Package zonespill is the plugin zone-spill: new connections stay in the zone that they come from as far as its
// endpoints are its share of the Service, and the rest goes to the zones that have endpoints to spare. When every node
// answers so, all endpoints have the same load.
package zonespill

import (
	"time"

	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps nothing from call to call but memory: what must be known of the past is in the request's state.
type plugin struct {
	settings settings

	zones      []zone
	nodeZone   int    // index of this node's zone
	unit       uint64 // greatest common divisor of the endpoints' weights
	largest    uint64 // of those weights, in units
	prev, next state
	buf        []byte
	texts      map[textKey]string
	zoneCaches []zoneCache
}

// New makes an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Needs implements sdk.Needer: demand is measured by Nodes.
func (p *plugin) Needs() sdk.Need { return sdk.NeedNodes }

// Decide weighs the cluster pool. A pool of local endpoints has no zones to choose among and stays as it is.
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
			p.chooseMultipliers()
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

// mode tells whether to act: as soon and as long as every zone has enough endpoints, except that a change of mind
// needs to hold for a while, so that a rollout which takes a zone's endpoints away for a moment changes nothing. The
// first time there is nothing to wait for.
func (p *plugin) mode(req *sdk.Request) (acts bool, wait time.Duration) {
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
		wait = time.Duration(left) * time.Millisecond
	}
	return p.next.mode == modeActive, wait
}

// keepDefault leaves every weight as it came, and says why.
func keepDefault(req *sdk.Request, resp *sdk.Response, why string) {
	reason := resp.AddReason(why)
	for i := range req.NumEndpoints() {
		resp.SetReasonID(i, reason)
	}
}

// setWeights gives each endpoint its own weight times its zone's.
func (p *plugin) setWeights(req *sdk.Request, resp *sdk.Response, ref uint64) {
	p.setReasons(req, resp)
	last, units := uint64(0), uint64(0)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		w := baseWeight(e, ref)
		if w == 0 {
			continue // it came with none
		}
		if w != last {
			last, units = w, w/p.unit
		}
		z := &p.zones[e.ZoneIndex()]
		resp.SetWeight(i, int(units*z.multiplier))
		resp.SetReasonID(i, z.reason)
	}
}
