package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Limits bound what one Service may make every node program. What exceeds them is left out, in an order that depends only on
// the objects, so that it is the same on every node. Zero is no limit. The maxima are what a data plane can program: the
// endpoints of a pool, and the source ranges of a transaction.
type Limits struct {
	// Frontends of a Service: ports × addresses of each family, and NodePorts. ClusterIPs come first, then NodePorts, load
	// balancer addresses and external IPs, each in the order of the Service's ports.
	Frontends int `json:"frontends" default:"5000" min:"1" max:"200000"`
	// Endpoints of a Service port in one family, in the order of the EndpointSlices' names.
	Endpoints int `json:"endpoints" default:"20000" min:"1" max:"65536"`
	// SourceRanges of a Service in one family, in the order of their addresses.
	SourceRanges int `json:"sourceRanges" default:"1000" min:"1" max:"5000"`
	// Elements of a Service: the endpoints and source ranges of each frontend, added up.
	Elements int `json:"elements" default:"500000" min:"1" max:"10000000"`
}

// quota is how many more frontends of each kind a Service may have, and how many more elements.
type quota struct {
	frontends [plan.NodePort + 1]int
	elements  int
	wanted    int            // frontends without a limit
	full      bool           // the elements are used up
	first     *plan.Frontend // the first one that is left out
}

// newQuota returns the quota of a Service.
func (l *Limits) newQuota(svc *model.Service, addrs []claims.Addr) quota {
	q := quota{elements: orUnlimited(l.Elements)}
	for _, a := range addrs {
		if a.Served && svc.HasFamily(model.FamilyOf(a.IP)) {
			q.frontends[a.Kind] += len(svc.Ports)
		}
	}
	for i := range svc.Ports {
		if svc.Ports[i].NodePort != 0 {
			q.frontends[plan.NodePort] += len(svc.ClusterIPs)
		}
	}
	left := orUnlimited(l.Frontends)
	for _, k := range [...]plan.Kind{plan.ClusterIP, plan.NodePort, plan.LoadBalancer, plan.ExternalIP} {
		q.wanted += q.frontends[k]
		q.frontends[k] = min(q.frontends[k], left)
		left -= q.frontends[k]
	}
	return q
}

func orUnlimited(n int) int {
	if n == 0 {
		return math.MaxInt
	}
	return n
}

// exhausted reports whether no frontend is left.
func (q *quota) exhausted() bool { return q.full || q.frontends == [plan.NodePort + 1]int{} }

// take takes a frontend from the quota. It reports false if there is no room.
func (q *quota) take(f *plan.Frontend) bool {
	n := len(f.Pool.Endpoints) + len(f.SourceRanges)
	if f.Outside != nil {
		n += len(f.Outside.Endpoints)
	}
	room := q.frontends[f.Kind] > 0
	if room && n <= q.elements {
		q.frontends[f.Kind]--
		q.elements -= n
		return true
	}
	q.full = q.full || room
	if q.first == nil {
		q.first = f
	}
	return false
}

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

// Omitted returns what is left out of Services because of limits and addresses, sorted by Service.
func (p *Planner) Omitted() (out []plan.Degradation) {
	for _, name := range p.ServiceNames() {
		out = append(out, p.services[name].omitted...)
	}
	return out
}
