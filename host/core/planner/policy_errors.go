package planner

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// PolicyError is why a policy fails for a Service.
type PolicyError struct {
	Policy  string
	Service model.Name
	Err     error
}

// addFailure records the error of a policy's chain, once a policy. A chain that waits for a plugin does not fail.
func (r *round) addFailure(of *policy.Policy, err error) {
	if err == nil || of == nil || errors.Is(err, policy.ErrPending) || slices.ContainsFunc(r.failed, func(f PolicyError) bool { return f.Policy == of.Name }) {
		return
	}
	r.failed = append(r.failed, PolicyError{of.Name, r.svc.Name, err})
}

// PolicyErrors returns the policies that fail, sorted by name, each with the first Service that it fails for. Its cost follows
// the number of Services if any policy fails.
func (w *world) PolicyErrors() (out []PolicyError) {
	if totals := w.counters.Totals(); totals.Failing == 0 {
		return nil
	}
	for _, s := range w.services {
		if s.policy != nil {
			out = append(out, s.policy.failed...)
		}
	}
	slices.SortFunc(out, func(a, b PolicyError) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), a.Service.Compare(b.Service))
	})
	return slices.CompactFunc(out, func(a, b PolicyError) bool { return a.Policy == b.Policy })
}
