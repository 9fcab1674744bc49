// Package locality implements the plugin locality, which divides the connections of each group between tiers of its endpoints. By
// capacity, a tier is a zone, which keeps the new connections of its own clients as far as its part of the endpoints covers its
// part of the demand; the rest goes to zones with spare endpoints. By priority, tiers are used in order: each gets as many
// connections as its healthy endpoints can take, the next one the rest.
package locality

import (
	"github.com/sluice-proxy/sluice/plugins/internal/tiers"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only caches between calls: history is in the state of the request.
type plugin struct {
	settings settings
	byCapacity
	byPriority

	tiers   tiers.Tiers
	reasons []sdk.ReasonID // of the tiers of each group
	state   tiers.State
	buf     []byte
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Needs implements sdk.Needer: Nodes measure the demand of a zone, unless settings give it.
func (p *plugin) Needs() sdk.Need {
	if p.settings.Mode == modePriority || p.settings.DemandByZone != nil {
		return 0
	}
	return sdk.NeedNodes
}

// Keys implements sdk.Keyer.
func (p *plugin) Keys() []string { return p.sorter.Keys() }

// Decide sets the share of the endpoints of each tier, within each group of the chain.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if p.settings.Mode == modePriority {
		p.decideByPriority(req, resp)
	} else {
		p.decideByCapacity(req, resp)
	}
	return nil
}

// follow keeps the last targets of tiers with these names as long as they stay. It returns the time to wait in milliseconds, 0 if
// nothing is to change.
func (p *plugin) follow(req *sdk.Request, names []uint32) (wait int64) {
	return p.tiers.Follow(&p.state, names, int64(req.Now()), tiers.Rule{
		Hysteresis: p.settings.HysteresisPercent, Hold: p.settings.HoldSeconds * 1000, Ordered: p.settings.Mode == modePriority,
	})
}

// finish asks for another decision after a time in milliseconds, 0 for none, and sets the state.
func (p *plugin) finish(resp *sdk.Response, wait int64) {
	if wait > 0 {
		resp.RequeueAfter(sdk.Duration(wait) * sdk.Millisecond)
	}
	p.buf = p.state.Append(p.buf[:0])
	resp.SetState(p.buf)
}
