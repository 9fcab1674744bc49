package sdktest

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// goodRow is the last good decision about an endpoint.
type goodRow struct {
	weight     uint16
	conditions uint32 // lifecycle of the endpoint
	draining   bool
	resetAt    int64 // 0: never
	shed       uint16
}

// lifecycle are the conditions on which a decision depends.
const lifecycle = abi.Ready | abi.Serving | abi.Terminating

// share returns the row for an endpoint with conditions.
func (r goodRow) share(conditions uint32) scenariotest.Share {
	s := scenariotest.Share{Weight: r.weight, Draining: r.draining && r.conditions == conditions&lifecycle, ShedPermille: r.shed}
	if r.resetAt != 0 {
		s.ResetAt = time.UnixMilli(r.resetAt)
	}
	return s
}

// combine makes the last response to req the last good decision. An endpoint whose connections have been reset gets no second
// reset until its conditions change.
func (p *pool) combine(req *abi.Request) {
	before := p.good
	p.good = map[netip.AddrPort]goodRow{}
	for i := range req.Endpoints {
		e, result := &req.Endpoints[i], &p.resp.Results[i]
		r := goodRow{
			weight: p.weights[i], conditions: e.Conditions & lifecycle,
			draining: result.Flags&abi.FlagKeepDraining != 0, shed: result.ShedPermille,
		}
		if result.ResetAfterMS != abi.NeverReset {
			r.resetAt = p.answeredAt + int64(result.ResetAfterMS)
			if old := before[e.Addr]; old.resetAt != 0 && old.resetAt <= req.Now && old.conditions == r.conditions {
				r.resetAt = old.resetAt
			}
		}
		p.good[e.Addr] = r
	}
	p.balance = p.resp.Balance
}

// applyLastGood applies the last good decision, if there is one with weight. An endpoint that it does not know in its present
// conditions gets the mean weight if it has one by the default rules.
func (p *pool) applyLastGood(eps []endpoint, d *scenariotest.Decision) {
	known, sum := 0, 0
	for i := range eps {
		if r, ok := p.applies(&eps[i]); ok && r.weight > 0 {
			known, sum = known+1, sum+int(r.weight)
		}
	}
	if known == 0 {
		return
	}
	d.Origin, d.Balance = scenariotest.FromLastGood, p.balance
	for i := range eps {
		e := &eps[i]
		share := p.good[e.addr].share(e.conditions)
		share.Weight = 0
		if r, ok := p.applies(e); ok {
			share.Weight = r.weight
		} else if e.isDefault {
			share.Weight = uint16(max(1, (sum+known/2)/known))
		}
		d.Endpoints[e.index] = share
	}
}

func (p *pool) applies(e *endpoint) (goodRow, bool) {
	r, ok := p.good[e.addr]
	return r, ok && e.conditions&abi.Eligible != 0 && r.conditions == e.conditions&lifecycle
}
