package loads

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// Bounds of what is asked. Services and streams are divided evenly between the namespaces that want them.
const (
	MaxServices  = 256
	maxEndpoints = 1000   // of a Service
	maxStreams   = 10_000 // of all
)

// Service is a Service whose endpoints are asked for their load.
type Service struct {
	Name      model.Name
	UID       string
	Port      uint16 // at which its endpoints serve ORCA
	Endpoints []Endpoint
	// Written is the load that its object has: a new collector goes on from there.
	Written []v1alpha1.ReportedLoad
	omitted int // endpoints beyond a bound
}

// Endpoint is an address with the Pod that it is said to be of; Pod "": of none.
type Endpoint struct {
	Addr     netip.Addr
	Pod, UID string
}

func (e Endpoint) compare(o Endpoint) int {
	return cmp.Or(e.Addr.Compare(o.Addr), cmp.Compare(e.Pod, o.Pod), cmp.Compare(e.UID, o.UID))
}

// Choose returns the Services whose endpoints are asked, sorted, of all that want it: MaxServices at most, divided evenly between
// their namespaces.
func Choose(all []model.Name) []model.Name {
	wanted := map[string]int{}
	for _, name := range all {
		wanted[name.Namespace]++
	}
	granted := share(wanted, MaxServices)
	var out []model.Name
	for _, name := range slices.SortedFunc(slices.Values(all), model.Name.Compare) {
		if granted[name.Namespace] > 0 {
			granted[name.Namespace]--
			out = append(out, name)
		}
	}
	return out
}

// admit returns Services sorted by name, each with its first endpoints within the bounds, sorted by address, and how many
// endpoints are left out.
func admit(all []Service) (out []Service, omitted int) {
	out = slices.SortedFunc(slices.Values(all), func(a, b Service) int { return a.Name.Compare(b.Name) })
	streams := map[string]int{}
	for i := range out {
		s := &out[i]
		s.Endpoints = slices.Compact(slices.SortedFunc(slices.Values(s.Endpoints), Endpoint.compare))
		streams[s.Name.Namespace] += s.limit(maxEndpoints)
	}
	granted := share(streams, maxStreams)
	for i := range out {
		s := &out[i]
		granted[s.Name.Namespace] -= s.limit(granted[s.Name.Namespace])
		omitted += s.omitted
	}
	return out, omitted
}

// limit leaves out endpoints beyond the first n, and returns how many are left.
func (s *Service) limit(n int) int {
	left := min(len(s.Endpoints), n)
	s.omitted += len(s.Endpoints) - left
	s.Endpoints = s.Endpoints[:left]
	return left
}

// share divides a total between namespaces: each gets what it wants, or as much as every other one that does not.
func share(wanted map[string]int, total int) map[string]int {
	names := slices.SortedFunc(maps.Keys(wanted), func(a, b string) int { return cmp.Or(wanted[a]-wanted[b], cmp.Compare(a, b)) })
	out := make(map[string]int, len(names))
	for i, name := range names {
		out[name] = min(wanted[name], total/(len(names)-i))
		total -= out[name]
	}
	return out
}
