package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// unprogrammed are the frontends that are not as planned, with the reasons. Everything else is as planned, and
// Backend.state is right about these too.
type unprogrammed map[plan.Key][]error

// retryBatch bounds how many of them one Apply retries. Which ones is random.
const retryBatch = 100

// retryDelta adds unprogrammed frontends to an empty delta. Other deltas are returned as they are.
func (p unprogrammed) retryDelta(next *plan.Plan, d *plan.Delta) *plan.Delta {
	if len(p) == 0 || !d.Empty() {
		return d
	}
	d = &plan.Delta{}
	for k := range p {
		if len(d.Changes) == retryBatch {
			break
		}
		d.Changes = append(d.Changes, plan.Change{Key: k, New: next.Frontends[k]})
	}
	slices.SortFunc(d.Changes, func(a, b plan.Change) int { return a.Key.Compare(b.Key) })
	return d
}

// record takes in the results of updates. It returns a backend.PartialError if any frontend is unprogrammed.
func (p unprogrammed) record(updates []*frontendUpdate) error {
	retried := false
	for _, u := range updates {
		delete(p, u.key)
		if len(u.errs) > 0 {
			p[u.key], retried = u.errs, true
		}
	}
	if len(p) == 0 {
		return nil
	}
	failed := make(map[plan.Key]error, len(p))
	for k, errs := range p {
		failed[k] = errs[0]
	}
	return &backend.PartialError{Frontends: len(p), Retried: retried, Err: p.err(), Failed: failed}
}

// maxReported bounds how many frontends an error names.
const maxReported = 5

func (p unprogrammed) err() error {
	var errs []error
	for i, k := range slices.SortedFunc(maps.Keys(p), plan.Key.Compare) {
		if i == maxReported {
			errs = append(errs, fmt.Errorf("ipvs: %d more frontends", len(p)-i))
			break
		}
		errs = append(errs, p[k][0])
		if more := len(p[k]) - 1; more > 0 {
			errs = append(errs, fmt.Errorf("ipvs: %s: %d more errors", k, more))
		}
	}
	return errors.Join(errs...)
}

// joinErrors returns the errors of updates, in the same short form.
func joinErrors(updates []*frontendUpdate) error {
	p := unprogrammed{}
	for _, u := range updates {
		if len(u.errs) > 0 {
			p[u.key] = u.errs
		}
	}
	return p.err()
}
