package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/plan"
)

// unprogrammed are the frontends that are not as planned, with the reasons. All else is, and the mirror is right about them.
type unprogrammed map[plan.Key][]error

// retryBatch is how many of them are tried at a time, whichever they are.
const retryBatch = 100

// retryDelta puts them into an empty delta: to try them again.
func (s unprogrammed) retryDelta(next *plan.Plan, d *plan.Delta) *plan.Delta {
	if len(s) == 0 || !d.Empty() {
		return d
	}
	d = &plan.Delta{}
	for k := range s {
		if len(d.Changes) == retryBatch {
			break
		}
		d.Changes = append(d.Changes, plan.Change{Key: k, New: next.Frontends[k]})
	}
	slices.SortFunc(d.Changes, func(a, b plan.Change) int { return a.Key.Compare(b.Key) })
	return d
}

// record takes what has become of jobs in, and gives the error that tells of all that are stuck; nil when none is.
func (s unprogrammed) record(jobs []*frontendUpdate) error {
	tried := false
	for _, j := range jobs {
		delete(s, j.key)
		if len(j.errs) > 0 {
			s[j.key], tried = j.errs, true
		}
	}
	if len(s) == 0 {
		return nil
	}
	return &backend.PartialError{Frontends: len(s), Retried: tried, Err: s.err()}
}

// maxErrors is of how many frontends an error tells one by one.
const maxErrors = 5

func (s unprogrammed) err() error {
	var errs []error
	for i, k := range slices.SortedFunc(maps.Keys(s), plan.Key.Compare) {
		if i == maxErrors {
			errs = append(errs, fmt.Errorf("ipvs: %d more frontends", len(s)-i))
			break
		}
		errs = append(errs, s[k][0])
		if more := len(s[k]) - 1; more > 0 {
			errs = append(errs, fmt.Errorf("ipvs: %s: and %d messages more", k, more))
		}
	}
	return errors.Join(errs...)
}

// joinErrors is the error of jobs when nothing is sure.
func joinErrors(jobs []*frontendUpdate) error {
	s := unprogrammed{}
	for _, j := range jobs {
		if len(j.errs) > 0 {
			s[j.key] = j.errs
		}
	}
	return s.err()
}
