package engine

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Unprogrammed returns which frontends of a Service the kernel has rejected, and why. Call it in Do.
func (e *Engine) Unprogrammed(service model.Name) (out []string) {
	for _, k := range slices.SortedFunc(maps.Keys(e.sync.failed), plan.Key.Compare) {
		if f := e.Planner.Current().Frontends[k]; f != nil && f.Owner.Service == service {
			out = append(out, k.String()+": "+e.sync.failed[k].Error())
		}
	}
	return out
}
