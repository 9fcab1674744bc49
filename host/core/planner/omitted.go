package planner

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// omitted returns what is left out of a Service: what exceeds the limits, and addresses that may not be endpoints.
func (r *round) omitted(l *Limits) (out []plan.Degradation) {
	add := func(f *plan.Frontend, what string, wanted, got int, limit string, n int) {
		out = append(out, plan.Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: fmt.Sprintf("%d %s", wanted, what),
			Got: fmt.Sprintf("%d, %d are left out", got, wanted-got), Why: fmt.Sprintf("serviceLimits.%s of the configuration is %d; it can be raised", limit, n), Limit: limit})
	}
	if f := r.quota.first; f != nil {
		limit, n := "frontends", l.Frontends
		if r.quota.full {
			limit, n = "elements", l.Elements
		}
		add(f, "frontends", r.quota.wanted, len(r.frontends), limit, n)
	}
	if len(r.frontends) == 0 {
		return out
	}
	if f := r.crowded; f != nil {
		add(f, "endpoints", r.endpoints, l.Endpoints, "endpoints", l.Endpoints)
	}
	if f := r.unsafeAt; f != nil {
		out = append(out, plan.Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: fmt.Sprintf("%d more endpoints", r.unsafe),
			Got: "none of these", Why: r.unsafeWhy.Error()})
	}
	for i, family := range model.Families {
		at := slices.IndexFunc(r.frontends, func(f *plan.Frontend) bool { return f.SourceRanges != nil && f.Key.Family() == family })
		if n := r.ranges[i].omitted; n > 0 && at >= 0 {
			add(r.frontends[at], "source ranges", l.SourceRanges+n, l.SourceRanges, "sourceRanges", l.SourceRanges)
		}
	}
	return out
}

// longAnnotations returns the annotations that plugins of the Service's policy declare and do not see because of their length.
func (r *round) longAnnotations(e *policy.Evaluator) (out []plan.Degradation) {
	if len(r.frontends) == 0 {
		return nil
	}
	var keys []string
	for _, of := range r.policies {
		for _, key := range e.LongAnnotations(r.svc, of) {
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	for _, key := range keys {
		f := r.frontends[0]
		out = append(out, plan.Degradation{Frontend: f.Key, Owner: f.Owner, Wanted: fmt.Sprintf("annotation %.317s", key), Got: "no value for plugins",
			Why: fmt.Sprintf("it has more than %d bytes", model.MaxAnnotation)})
	}
	return out
}
