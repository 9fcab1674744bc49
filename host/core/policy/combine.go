package policy

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// combine combines the answers of the chain to a request: the weights of the parts that all of it leaves, the earliest reset, the
// last balance that is set. addrs are the addresses of the port's endpoints.
func (e *chains) combine(ch *chain, req *abi.Request, addrs model.AddrList) *lastGood {
	old := ch.lastGood
	if old == nil {
		old = &lastGood{}
	}
	expired, oldAddrs := old.expiredResets(req.Now), old.addrs
	n := len(req.Endpoints)
	g := &lastGood{addrs: addrs}
	if expired == nil && cap(old.rows) >= n { // old.rows is not used any more
		g.rows = old.rows[:n]
	} else {
		g.rows = make([]row, n)
	}
	if !sameAddrs(g.addrs, n, func(i int) netip.AddrPort { return req.Endpoints[i].Addr }) { // a local pool, or earlier endpoints
		g.addrs = model.PackAddrs(n, func(i int) netip.AddrPort { return req.Endpoints[i].Addr })
	}
	for i := range g.rows {
		g.rows[i] = row{conditions: uint8(req.Endpoints[i].Conditions & lifecycleBits)}
	}
	for k := range ch.steps {
		s := &ch.steps[k]
		if s.balance != abi.BalanceDefault {
			g.balance = s.balance
		}
		for i, keep := range s.results.keepDraining {
			if keep {
				g.rows[i].keepDraining, g.hasDraining = true, true
			}
		}
		for i, after := range s.results.resetAfterMS {
			if after != abi.NeverReset {
				if at := s.answeredAt + int64(after); g.resetAt(i) == 0 || at < g.resetAt(i) {
					g.setReset(i, at)
				}
			}
		}
	}
	e.parts = req.Parts(e.parts[:0])
	e.weights = slices.Grow(e.weights[:0], n)[:n]
	clear(e.weights)
	abi.Weights(e.weights, e.parts)
	for i, w := range e.weights {
		g.rows[i].weight = w
	}
	ch.combineSheds(g, old.sheds, oldAddrs)
	if expired == nil {
		return g
	}
	for i, at := range g.resetsAt { // no second reset until the endpoint's conditions change
		if j, ok := expired[g.addrs.At(i)]; ok && at != 0 && old.rows[j].conditions == g.rows[i].conditions {
			g.setReset(i, old.resetAt(j))
		}
	}
	return g
}
