package statuspage

import (
	"cmp"
	"slices"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

// maxRows bounds the endpoints of a pool that are shown.
const maxRows = 250

// serviceBody is what the page of a Service shows.
type serviceBody struct {
	*api.Explanation
	Namespace, Name   string
	Failing, Degraded []string
	Pools             []poolView
}

// poolView is a pool with its endpoints, the eligible ones first.
type poolView struct {
	*api.Pool
	Rows     []endpointRow
	More     int      // endpoints that are not shown
	Eligible int      // of all
	Serving  int      // with weight
	Plugins  []string // that have decided
	Outcomes bool     // are known of an endpoint
	Compared bool     // the shadow has a decision
}

// endpointRow is an endpoint with what a plugin saw of it.
type endpointRow struct {
	*api.Endpoint
	Outcomes    *api.InputOutcomes
	Connections *uint32
	Steps       []*api.Step // of each of the pool's Plugins; nil: it has no decision
}

func newServiceBody(x *api.Explanation) *serviceBody {
	b := &serviceBody{Explanation: x}
	own := *x
	own.Node = nil // what is not in force on the node is above, in the state of the node
	b.Failing, b.Degraded = own.Problems()
	for i := range x.Pools {
		b.Pools = append(b.Pools, newPoolView(&x.Pools[i]))
	}
	return b
}

func newPoolView(p *api.Pool) poolView {
	out := poolView{Pool: p}
	type seen struct {
		outcomes    *api.InputOutcomes
		connections *uint32
	}
	inputs := map[string]seen{}
	for i := range p.Inputs {
		for j := range p.Inputs[i].Endpoints {
			e := &p.Inputs[i].Endpoints[j]
			s := inputs[e.Address]
			s.outcomes, s.connections = cmp.Or(e.Outcomes, s.outcomes), cmp.Or(e.Connections, s.connections)
			inputs[e.Address] = s
			out.Outcomes = out.Outcomes || e.Outcomes != nil
		}
	}
	order := make([]*api.Endpoint, 0, len(p.Endpoints))
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		order = append(order, e)
		if e.Eligible {
			out.Eligible++
		}
		if e.Weight > 0 {
			out.Serving++
		}
		out.Compared = out.Compared || e.Shadow != nil
		for _, s := range e.Steps {
			if !slices.Contains(out.Plugins, s.Plugin) {
				out.Plugins = append(out.Plugins, s.Plugin)
			}
		}
	}
	rank := func(e *api.Endpoint) int {
		switch {
		case e.Weight > 0:
			return 0
		case e.Eligible:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b *api.Endpoint) int { return rank(a) - rank(b) })
	for _, e := range order[:min(len(order), maxRows)] {
		row := endpointRow{Endpoint: e, Outcomes: inputs[e.Address].outcomes, Connections: inputs[e.Address].connections}
		for _, name := range out.Plugins {
			at := slices.IndexFunc(e.Steps, func(s api.Step) bool { return s.Plugin == name })
			if at < 0 {
				row.Steps = append(row.Steps, nil)
			} else {
				row.Steps = append(row.Steps, &e.Steps[at])
			}
		}
		out.Rows = append(out.Rows, row)
	}
	out.More = len(order) - len(out.Rows)
	return out
}

// drainsBody is the endpoints that drain.
type drainsBody struct {
	*api.Drains
	Connections uint64 // left, of all drains
	Counted     bool
	Most        uint32 // connections of a drain
}

func newDrainsBody(x *api.Drains) *drainsBody {
	b := &drainsBody{Drains: x}
	for i := range x.Drains {
		if n := x.Drains[i].Connections; n != nil {
			b.Counted = true
			b.Connections += uint64(*n)
			b.Most = max(b.Most, *n)
		}
	}
	return b
}
