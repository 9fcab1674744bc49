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

	zones   []zone
	mine    int    // index of this node's zone
	unit    uint64 // greatest common divisor of the endpoints' weights
	largest uint64 // of those weights, in units
	was, is memory
	buf     []byte
	texts   map[textKey]string
	names   []named
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
		keep(req, resp, why)
		return nil
	}
	p.was.read(req.State())
	acts, wait := p.mode(req)
	if wait > 0 {
		resp.RequeueAfter(wait)
	}
	if acts {
		p.shares()
		if !p.remembered(req) {
			p.fit()
			p.memorize(req)
		}
		p.weigh(req, resp, ref)
	} else {
		keep(req, resp, p.tooFew(req))
	}
	p.buf = p.is.append(p.buf[:0])
	resp.SetState(p.buf)
	return nil
}

// mode tells whether to act: as soon and as long as every zone has enough endpoints, except that a change of mind
// needs to hold for a while, so that a rollout which takes a zone's endpoints away for a moment changes nothing. The
// first time there is nothing to wait for.
func (p *plugin) mode(req *sdk.Request) (acts bool, wait time.Duration) {
	enough := p.few() < 0
	now := int64(req.Now())
	p.is.reset()
	switch {
	case p.was.mode == modeNone:
		p.is.mode = modeOf(enough)
	case p.was.mode == modeOf(enough):
		p.is.mode = p.was.mode
	default:
		since := p.was.since
		if since == 0 || since > now {
			since = now
		}
		left := since + p.settings.HoldSeconds*1000 - now
		if left <= 0 {
			p.is.mode = modeOf(enough)
			break
		}
		p.is.mode, p.is.since = p.was.mode, since
		wait = time.Duration(left) * time.Millisecond
	}
	return p.is.mode == modeActs, wait
}

// keep leaves every weight as it came, and says why.
func keep(req *sdk.Request, resp *sdk.Response, why string) {
	reason := resp.AddReason(why)
	for i := range req.NumEndpoints() {
		resp.SetReasonID(i, reason)
	}
}

// weigh gives each endpoint its own weight times its zone's.
func (p *plugin) weigh(req *sdk.Request, resp *sdk.Response, ref uint64) {
	p.explain(req, resp)
	last, units := uint64(0), uint64(0)
	for i := range req.NumEndpoints() {
		e := req.Endpoint(i)
		w := natural(e, ref)
		if w == 0 {
			continue // it came with none
		}
		if w != last {
			last, units = w, w/p.unit
		}
		z := &p.zones[e.ZoneIndex()]
		resp.SetWeight(i, int(units*z.times))
		resp.SetReasonID(i, z.reason)
	}
}
