package main

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// explanation is what `sluice explain` shows, and its JSON form.
type explanation struct {
	Service   string        `json:"service"`
	Policy    string        `json:"policy,omitempty"`
	Plugins   []string      `json:"plugins,omitempty"`
	Mode      string        `json:"mode,omitempty"`
	Error     string        `json:"error,omitempty"`
	Frontends []string      `json:"frontends"`
	Contested []string      `json:"contested,omitempty"` // wanted, and another Service has it
	Pools     []explainPool `json:"pools"`
}

// explainPool is one list of a Service port in one family.
type explainPool struct {
	Port      string            `json:"port"`
	Number    uint16            `json:"number"`
	Protocol  string            `json:"protocol"`
	Family    string            `json:"family"`
	Pool      string            `json:"pool"` // cluster or local
	Topology  string            `json:"topology"`
	DecidedBy string            `json:"decidedBy"`
	Endpoints []explainEndpoint `json:"endpoints"`
}

// explainEndpoint is why an endpoint gets what it gets in a pool.
type explainEndpoint struct {
	Address  string        `json:"address"`
	Pod      string        `json:"pod,omitempty"`
	Node     string        `json:"node,omitempty"`
	Zone     string        `json:"zone,omitempty"`
	Eligible bool          `json:"eligible"`
	Why      string        `json:"why"`
	Default  uint16        `json:"default"` // weight by the default rules
	Steps    []explainStep `json:"steps,omitempty"`
	Observed *uint16       `json:"observed,omitempty"` // what a policy in mode Observe would give
	Weight   uint16        `json:"weight"`
	Share    float64       `json:"share"` // of new connections, 0 to 1
	ResetAt  *time.Time    `json:"resetAt,omitempty"`
	Kernel   []kernelShare `json:"kernel,omitempty"`
}

// explainStep is one plugin's word on an endpoint.
type explainStep struct {
	Plugin string `json:"plugin"`
	Weight uint16 `json:"weight"`
	Reason string `json:"reason,omitempty"`
}

// kernelShare is what the data plane really holds for an endpoint behind a frontend.
type kernelShare struct {
	Frontend string `json:"frontend"`
	Weight   uint16 `json:"weight"`
	Total    int    `json:"total"`
	// Connections through the frontend, in mode ipvs.
	Connections *connections `json:"connections,omitempty"`
}

func newExplanation(e *planner.Explanation) *explanation {
	x := &explanation{Service: e.Service.Name.String(), Frontends: []string{}, Pools: []explainPool{}}
	if e.Policy != nil {
		x.Policy, x.Mode = e.Policy.Name, e.Policy.Mode.String()
		for _, s := range e.Policy.Steps {
			x.Plugins = append(x.Plugins, s.Plugin)
		}
	}
	if e.Err != nil {
		x.Error = e.Err.Error()
	}
	for _, f := range e.Frontends {
		x.Frontends = append(x.Frontends, f.Kind.String()+" "+f.Key.String())
	}
	for _, d := range e.Contested {
		x.Contested = append(x.Contested, d.Wanted+" "+d.Frontend.String()+": "+d.Why)
	}
	for i := range e.Decided {
		d := &e.Decided[i]
		if d.Port.UsesCluster {
			x.Pools = append(x.Pools, newExplainPool(d.Port, &d.Cluster, abi.PoolCluster))
		}
		if d.Port.UsesLocal {
			x.Pools = append(x.Pools, newExplainPool(d.Port, &d.Local, abi.PoolLocal))
		}
	}
	return x
}

func newExplainPool(p *service.Port, d *policy.Decision, pool uint8) explainPool {
	out := explainPool{
		Port: p.Name.Port, Number: p.Spec.Port, Protocol: p.Name.Protocol.String(), Family: p.Family.String(),
		Pool: "cluster", Topology: p.Topology.String(), DecidedBy: d.From.String(), Endpoints: []explainEndpoint{},
	}
	if pool == abi.PoolLocal {
		out.Pool = "local"
	}
	total := 0
	for _, w := range d.Weights {
		total += int(w)
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		row := explainEndpoint{
			Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Eligible: e.Eligible(), Why: p.Why(e), Weight: d.Weights[i],
		}
		if pool == abi.PoolLocal && !e.Local {
			row.Eligible, row.Why = false, "not on this node"
		}
		if pool == abi.PoolCluster && e.InCluster || pool == abi.PoolLocal && e.InLocal {
			row.Default = 1
		}
		for _, s := range d.Steps {
			if s.Err == nil {
				row.Steps = append(row.Steps, explainStep{s.Plugin, s.Weights[i], s.Reasons[i]})
			}
		}
		if d.Observed != nil {
			row.Observed = &d.Observed[i]
		}
		if total > 0 {
			row.Share = float64(row.Weight) / float64(total)
		}
		if d.ResetAt != nil && d.ResetAt[i] != 0 {
			at := time.UnixMilli(d.ResetAt[i]).UTC()
			row.ResetAt = &at
		}
		out.Endpoints = append(out.Endpoints, row)
	}
	return out
}

// addKernel fills in what the data plane holds, and says why where it cannot be read.
func (x *explanation) addKernel(ctx context.Context) (note string) {
	held, err := readKernel(ctx)
	if err != nil {
		return "not shown: " + err.Error()
	}
	if len(held.Frontends) == 0 {
		return "sluice holds nothing in this kernel"
	}
	for _, k := range held.Keys() {
		f := held.Frontends[k]
		if f.Owner.Service.String() != x.Service {
			continue
		}
		for i := range x.Pools {
			p := &x.Pools[i]
			if p.Port != f.Owner.Port || p.Protocol != f.Owner.Protocol.String() || p.Family != k.Family().String() {
				continue
			}
			pool := &f.Pool
			if p.Pool == "local" && f.Outside != nil {
				pool = f.Outside
			}
			for j := range p.Endpoints {
				at := slices.IndexFunc(pool.Members, func(m plan.Member) bool { return m.Addr.String() == p.Endpoints[j].Address })
				share := kernelShare{Frontend: k.String(), Total: pool.Total()}
				if at >= 0 {
					share.Weight = pool.Members[at].Weight
				}
				p.Endpoints[j].Kernel = append(p.Endpoints[j].Kernel, share)
			}
		}
	}
	if counts, err := ipvs.ReadStats(ctx, math.MaxInt); err == nil {
		x.addCounts(counts)
	}
	return ""
}
