package policy

import "github.com/sluice-proxy/sluice/host/core/eligibility"

// PortDecision is a Service port in one family with the decisions about its pools.
type PortDecision struct {
	Port    *eligibility.Port
	Cluster Decision // when Port.UsesCluster
	Local   Decision // when Port.UsesLocal
}

// Drains reports whether endpoint i drains: it is terminating, or its policy keeps it for its connections only.
func (d *PortDecision) Drains(i int) bool {
	active, draining := d.Use(i)
	return draining && !active
}

// Use reports whether an endpoint of a Service port is active in a pool, and whether it drains in one.
func (d *PortDecision) Use(i int) (active, draining bool) {
	e := &d.Port.Endpoints[i]
	terminating := e.Terminating && !e.Ready
	inPool := func(in bool, got *Decision) {
		if !in {
			return
		}
		drains := terminating || got.KeepDraining != nil && got.KeepDraining[i]
		draining = draining || drains
		active = active || !drains && got.Weights[i] > 0
	}
	inPool(d.Port.UsesCluster, &d.Cluster)
	inPool(d.Port.UsesLocal && e.Local, &d.Local)
	return active, draining
}
