package planner

import (
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// addSheds adds the sheds of a port's decisions, through the frontends of the pools that they are about.
func (r *round) addSheds(d *policy.PortDecision, by *policy.Policy, frontends []*plan.Frontend) {
	if d.Cluster.Sheds == nil && d.Local.Sheds == nil {
		return
	}
	limit := max(1, by.MaxShedPercentPerSecond)
	for i := range d.Port.Endpoints {
		key := shedKey{d.Port.Name, d.Port.Endpoints[i].Addr}
		var w wantedShed
		var inCluster, inLocal bool
		for pool, of := range [...]*policy.Decision{abi.PoolCluster: &d.Cluster, abi.PoolLocal: &d.Local} {
			if of.Sheds == nil || of.Sheds[i].Permille == 0 {
				continue
			}
			if s := of.Sheds[i]; s.Permille > w.permille {
				w.permille, w.at = s.Permille, s.At
			}
			inCluster, inLocal = inCluster || pool == abi.PoolCluster, inLocal || pool == abi.PoolLocal
		}
		if w.permille == 0 {
			continue
		}
		share := EffectiveShed(w.permille, limit)
		if w.bounded = share < w.permille; w.bounded {
			r.shedding = by
		}
		w.share, w.limit = uint64(share)*plan.ShedSpace/abi.MaxShedPermille, uint64(limit)*plan.ShedSpace/100
		for _, f := range frontends {
			usesLocal := f.Outside != nil || f.Kind == plan.ClusterIP && r.svc.InternalLocal
			usesCluster := f.Kind != plan.ClusterIP || !r.svc.InternalLocal
			if inCluster && usesCluster || inLocal && usesLocal {
				w.frontends = append(w.frontends, f.Key)
			}
		}
		if r.sheds == nil {
			r.sheds = map[shedKey]wantedShed{}
		}
		r.sheds[key] = w
	}
}
