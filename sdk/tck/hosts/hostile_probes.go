package hosts

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/sdk/tck"
)

// hostile loads and calls each hostile module, beside a plugin that must not notice.
func (r *run) hostile() {
	good := func() error {
		if r.host == nil { // it has been stopped
			if err := r.load("good", Guest("good"), nil); err != nil {
				return err
			}
		}
		q := ordinary(7)
		got, err := r.decide("good", q, nil)
		if err == nil {
			err = keeps(q, got)
		}
		return err
	}
	if r.fail(GoesOn, "guests/good.wat", r.load("good", Guest("good"), nil)) {
		return
	}
	defer r.unload("good")
	if len(r.missing) == 0 {
		r.found[Missing] = tck.Skipped("the host has every input")
	}
	for _, m := range Hostile() {
		what := "hostile/" + m.Name + ".wat"
		var settings *string
		if m.Settings != "" {
			settings = &m.Settings
		}
		refuses := RefusesLoad
		if m.Missing != "" {
			if refuses = Missing; !slices.Contains(r.missing, m.Missing) {
				continue
			}
		}
		err := r.load("evil", m.Text, settings)
		switch {
		case r.fatal != nil:
			return
		case err != nil && !isRefusal(err):
			r.fail(refuses, what+": load", err)
		case err != nil && m.Stage == AtCall:
			r.fail(Ends, what, fmt.Errorf("it does not load, though it misbehaves in decisions for port %d only: %w", port, err))
		case err == nil && m.Stage == AtLoad:
			r.fail(refuses, what, errors.New("it loads"))
		case err == nil:
			r.misbehaves(what)
		default:
			r.conclude(refuses, what, nil)
		}
		r.conclude(GoesOn, "guests/good.wat beside "+what, good())
		r.unload("evil")
	}
}

// misbehaves calls a hostile module that has loaded.
func (r *run) misbehaves(what string) {
	q, evil := ordinary(7), special(3)
	before, err := r.decide("evil", q, nil)
	if err == nil {
		err = keeps(q, before)
	}
	if r.fail(Ends, what+": an ordinary request", err) {
		return
	}
	if _, err = r.decide("evil", evil, nil); err == nil {
		r.fail(Ends, what, errors.New("the call has not failed"))
		return
	}
	if isRefusal(err) {
		err = nil
	}
	if r.conclude(Ends, what, err) {
		return
	}
	q.Generation++
	after, err := r.decide("evil", q, nil)
	if err == nil {
		err = keeps(q, after)
	}
	r.conclude(GoesOn, what+": an ordinary request after the call that has failed", err)
}
