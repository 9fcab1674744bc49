package nftables

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// unprogrammed are the frontends that cannot be programmed. The kernel has their former state, if any. Everything else is as
// planned.
type unprogrammed struct {
	frontends map[plan.Key]failure
	retried   bool // the current Apply tried to program one
}

// failure is why a frontend cannot be programmed. With a retryAt the kernel has rejected it: it is not tried before that time,
// because a rejected transaction makes it necessary to read the tables.
type failure struct {
	err     error
	retryAt time.Time
	delay   time.Duration
}

// The delays before the kernel gets a frontend again that it has rejected.
const (
	minRetryDelay = time.Second
	maxRetryDelay = 10 * time.Minute
)

// maxReported bounds how many frontends an error names.
const maxReported = 5

func (u *unprogrammed) add(k plan.Key, err error, rejected time.Time) {
	if u.frontends == nil {
		u.frontends = map[plan.Key]failure{}
	}
	f := failure{err: err}
	if !rejected.IsZero() {
		f.delay = min(max(minRetryDelay, 2*u.frontends[k].delay), maxRetryDelay)
		f.retryAt = rejected.Add(f.delay)
	}
	u.frontends[k], u.retried = f, true
}

func (u *unprogrammed) remove(k plan.Key) { delete(u.frontends, k) }

// waits reports whether a frontend is not to be tried now.
func (u *unprogrammed) waits(k plan.Key) bool { return !u.frontends[k].retryAt.IsZero() }

// due reports whether frontends are to be tried again, and releases them.
func (u *unprogrammed) due(now time.Time) (due bool) {
	for k, f := range u.frontends {
		if !f.retryAt.IsZero() && !now.Before(f.retryAt) {
			f.retryAt, due = time.Time{}, true
			u.frontends[k] = f
		}
	}
	return due
}

// retain removes the frontends that a plan does not have.
func (u *unprogrammed) retain(next *plan.Plan) {
	maps.DeleteFunc(u.frontends, func(k plan.Key, _ failure) bool { return next.Frontends[k] == nil })
}

// err returns a backend.PartialError, nil if there are no such frontends.
func (u *unprogrammed) err() error {
	if len(u.frontends) == 0 {
		return nil
	}
	failed := make(map[plan.Key]error, len(u.frontends))
	var errs []error
	for i, k := range slices.SortedFunc(maps.Keys(u.frontends), plan.Key.Compare) {
		failed[k] = u.frontends[k].err
		switch {
		case i < maxReported:
			errs = append(errs, u.frontends[k].err)
		case i == maxReported:
			errs = append(errs, fmt.Errorf("nftables: %d more frontends", len(u.frontends)-i))
		}
	}
	return &backend.PartialError{Frontends: len(failed), Retried: u.retried, Err: errors.Join(errs...), Failed: failed}
}

// rejection is a frontend whose transaction the kernel rejected.
type rejection struct {
	key plan.Key
	err error
}

func (r *rejection) Error() string { return r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

// isRejection reports whether an error may be due to the content of a transaction.
func isRejection(err error) bool {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSPC, unix.ERANGE, unix.E2BIG, unix.EOVERFLOW, unix.EEXIST, unix.ENOTEMPTY, unix.EMSGSIZE} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// maxIsolated bounds how many frontends one Apply isolates: each takes reading the tables.
const maxIsolated = 8
