package state

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// maxDrainServices bounds the Services of a Drains.
const maxDrainServices = 200

// newDrains returns the drains of a Service.
func newDrains(e *planner.Explanation, now time.Time, wallTime func(int64) time.Time) (out []api.Drain) {
	for i := range e.Decisions {
		d := &e.Decisions[i]
		var pool *api.Pool
		for j := range d.Port.Endpoints {
			if !d.Drains(j) {
				continue
			}
			if pool == nil {
				of, kind := &d.Cluster, abi.PoolCluster
				if !d.Port.UsesCluster {
					of, kind = &d.Local, abi.PoolLocal
				}
				p := newPool(d.Port, of, uint8(kind), e.PolicyOf(d.Port.Name), wallTime)
				pool = &p
			}
			row := &pool.Endpoints[j]
			x := api.Drain{
				Service: e.Service.Name.String(), Port: pool.Port, Number: pool.Number, Protocol: pool.Protocol, Family: pool.Family,
				Address: row.Address, Pod: row.Pod, Node: row.Node, Zone: row.Zone,
				Why: row.Why, Steps: row.Steps, Weight: row.Weight, Share: row.Share, ResetAt: row.ResetAt, Shed: row.Shed,
			}
			if e.Policy != nil {
				x.Policy = e.Policy.Name
			}
			if ms := e.DrainingSince[d.Port.Endpoints[j].Addr]; ms != 0 {
				at := wallTime(ms).UTC()
				x.Since = &at
			}
			switch {
			case x.ResetAt != nil && !x.ResetAt.After(now):
				x.Stage = api.StageReset
			case x.Shed != nil:
				x.Stage = api.StageShedding
			case x.Weight > 0:
				x.Stage = api.StageServing
			default:
				x.Stage = api.StageDraining
			}
			out = append(out, x)
		}
	}
	return out
}

// CountConnections adds the open connections to the endpoints that are in count.
type CountConnections func(ctx context.Context, count map[model.EndpointKey]uint32) error

// Drains returns the endpoints that drain, with their open connections.
func (a *Agent) Drains(ctx context.Context) (*api.Drains, error) {
	x, err := readDrains(ctx, a.Engine)
	if err != nil {
		return nil, err
	}
	x.Node = a.NodeName
	addConnections(ctx, x, a.Connections)
	return x, nil
}

// readDrains returns the drains of an engine. Between two Services it lets the engine work.
func readDrains(ctx context.Context, e *engine.Engine) (*api.Drains, error) {
	out := &api.Drains{At: time.Now().UTC(), Drains: []api.Drain{}}
	var names []model.Name
	if err := e.Do(ctx, func(p *planner.Planner) { names, out.OmittedServices = p.Draining(maxDrainServices) }); err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := e.Do(ctx, func(p *planner.Planner) {
			if x, err := p.Explain(name); err == nil { // else it has been deleted since
				out.Drains = append(out.Drains, newDrains(x, out.At, e.WallTime)...)
			}
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// addConnections counts the open connections of all drains.
func addConnections(ctx context.Context, x *api.Drains, counter CountConnections) {
	if len(x.Drains) == 0 {
		return
	}
	count := map[model.EndpointKey]uint32{}
	for i := range x.Drains {
		if k, ok := keyOf(&x.Drains[i]); ok {
			count[k] = 0
		}
	}
	if err := counter(ctx, count); err != nil {
		x.ConnectionsError = err.Error()
		return
	}
	for i := range x.Drains {
		if k, ok := keyOf(&x.Drains[i]); ok {
			n := count[k]
			x.Drains[i].Connections = &n
		}
	}
}

func keyOf(x *api.Drain) (model.EndpointKey, bool) {
	addr, err := netip.ParseAddrPort(x.Address)
	protocol, ok := model.ParseProtocol(strings.ToUpper(x.Protocol))
	return model.EndpointKey{Addr: addr, Protocol: protocol}, err == nil && ok
}
