package policy

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Panic is when a policy holds endpoints that are no longer ready, because it is more likely that their nodes or the API server
// fail to report them than that so many have failed.
type Panic struct {
	// Below is the percentage of a pool's endpoints, without those that terminate, below which ready ones mean panic; 0: never.
	Below int
	Hold  time.Duration // for how long after an endpoint was ready it may be held
}

// Hold is the panic hold of a pool.
type Hold struct {
	Ready, Total int     // endpoints of the pool that do not terminate: the ready ones, and all
	Panicking    bool    // fewer than Panic.Below percent are ready
	Held         int     // endpoints that count as ready although they are not
	Until        []int64 // parallel to Port.Endpoints: until when an endpoint is held, Unix milliseconds; 0: it is not. Nil: all 0
	Failing      []bool  // parallel to Port.Endpoints: not held because connections from this node fail. Nil: all false
	// Counted reports whether outcomes of connections are counted. If not, endpoints are held without regard to them.
	Counted bool
}

// holds are which endpoints policies with Panic hold.
type holds struct {
	known     *known
	readiness map[readinessKey]*readiness // of Service ports whose policy has Panic
}

// endpoints returns which endpoints are held, nil for none.
func (h *Hold) endpoints() []bool {
	if h.Held == 0 {
		return nil
	}
	out := make([]bool, len(h.Until))
	for i, until := range h.Until {
		out[i] = until != 0
	}
	return out
}

// readinessKey identifies the readiness of a Service port in a family, which its pools share.
type readinessKey struct {
	port   model.PortName
	family model.Family
}

// readiness is when the endpoints of a Service port were ready, as seen by this node. It is sorted by address, and parallel to
// the endpoints of the last update.
type readiness struct {
	addrs model.AddrList
	rows  []readinessRow
}

// readinessRow is the readiness of an endpoint. An endpoint that terminates has none.
type readinessRow struct {
	pod   string // a Pod with the address of another one is another endpoint
	ready bool
	lost  uint32 // when it was no longer ready, Unix seconds; 0: it is ready, or was not since this node has seen it
	// failing: connections to it have failed since. It is not held before it was ready again: it would get connections only to
	// find out whether they fail.
	failing bool
}

// update updates the rows from the conditions at now, and drops endpoints that are not in eps.
func (r *readiness) update(eps []eligibility.Endpoint, now time.Time) {
	old, j, n := *r, 0, r.addrs.Len()
	if !sameAddrs(r.addrs, len(eps), func(i int) netip.AddrPort { return eps[i].Addr }) {
		r.addrs = model.PackAddrs(len(eps), func(i int) netip.AddrPort { return eps[i].Addr })
		r.rows = make([]readinessRow, len(eps))
	}
	s := max(seconds(wholeSecond(now)), 1)
	for i := range eps {
		e := &eps[i]
		for j < n && old.addrs.At(j).Compare(e.Addr) < 0 {
			j++
		}
		var before readinessRow
		if j < n && old.addrs.At(j) == e.Addr && old.rows[j].pod == e.Pod {
			before = old.rows[j]
		}
		row := readinessRow{pod: e.Pod}
		switch {
		case e.Terminating:
		case e.Ready:
			row.ready = true
		case before.ready:
			row.lost = s
		case before.lost != 0:
			row.lost, row.failing = min(before.lost, s), before.failing // a later time is from a checkpoint that was changed
		}
		r.rows[i] = row
	}
}

// hold returns the hold of a pool, and when it changes without a change of the endpoints, Unix milliseconds, 0: never.
func (o *holds) hold(r *readiness, p Panic, port *eligibility.Port, local bool, now time.Time) (h *Hold, next int64) {
	h = &Hold{Counted: o.known.countsOutcomes(now)}
	for i := range port.Endpoints {
		if ep := &port.Endpoints[i]; !ep.Terminating && (!local || ep.Local) {
			h.Total++
			if ep.Ready {
				h.Ready++
			}
		}
	}
	h.Panicking = h.Ready*100 < p.Below*h.Total
	for i := range port.Endpoints {
		ep, row := &port.Endpoints[i], &r.rows[i]
		if row.lost == 0 || local && !ep.Local {
			continue
		}
		row.failing = row.failing || h.Counted && o.known.failing(model.EndpointKey{Addr: ep.Addr, Protocol: port.Name.Protocol})
		until := milliseconds(row.lost) + p.Hold.Milliseconds()
		switch {
		case !h.Panicking || until <= now.UnixMilli():
		case row.failing:
			if h.Failing == nil {
				h.Failing = make([]bool, len(port.Endpoints))
			}
			h.Failing[i] = true
		default:
			if h.Until == nil {
				h.Until = make([]int64, len(port.Endpoints))
			}
			h.Until[i] = until
			h.Held++
			if next == 0 || until < next {
				next = until
			}
		}
	}
	return h, next
}

// Hold marks the endpoints of a port that a policy with Panic holds, and returns the holds by pool (nil: the port does not have
// the pool, or the policy holds none) and when to call it again; zero: only on a change of the endpoints or their outcomes.
func (o *holds) Hold(p *Policy, port *eligibility.Port, now time.Time) (holds [2]*Hold, at time.Time) {
	key := readinessKey{port.Name, port.Family}
	if p == nil || p.Panic.Below == 0 {
		if len(o.readiness) > 0 {
			delete(o.readiness, key)
		}
		return holds, time.Time{}
	}
	r := o.readiness[key]
	if r == nil {
		r = &readiness{}
		o.readiness[key] = r
	}
	r.update(port.Endpoints, now)
	var held [2][]bool
	nextMS := int64(0)
	for pool, used := range [...]bool{abi.PoolCluster: port.UsesCluster, abi.PoolLocal: port.UsesLocal} {
		if !used {
			continue
		}
		h, next := o.hold(r, p.Panic, port, pool == abi.PoolLocal, now)
		holds[pool], held[pool] = h, h.endpoints()
		if next != 0 && (nextMS == 0 || next < nextMS) {
			nextMS = next
		}
	}
	if held[abi.PoolCluster] != nil || held[abi.PoolLocal] != nil {
		port.Hold(held[abi.PoolCluster], held[abi.PoolLocal])
	}
	if nextMS != 0 {
		at = time.UnixMilli(nextMS)
	}
	return holds, at
}
