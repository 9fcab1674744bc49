package planner

import (
	"math"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
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
