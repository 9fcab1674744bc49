package eligibility

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestManyEndpointsAreSortedAsFew compares sorting by places with sorting the endpoints themselves, in both families, with
// duplicates.
func TestManyEndpointsAreSortedAsFew(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		eps := randomEndpoints(r, manyEndpoints+r.IntN(400), 1+r.IntN(1000), seed%2 == 0)
		want := slices.Clone(eps)
		slices.SortStableFunc(want, func(a, b Endpoint) int { return compareEndpoints(&a, &b) })
		if sortEndpoints(eps); !slices.Equal(eps, want) {
			t.Fatalf("seed %d: not sorted", seed)
		}
	}
}

func randomEndpoints(r *rand.Rand, n, addresses int, v6 bool) (out []Endpoint) {
	for range n {
		a := r.IntN(addresses)
		e := Endpoint{Node: fmt.Sprint("n", r.IntN(3)), Pod: fmt.Sprint("p", r.IntN(3)), Ready: r.IntN(2) == 0, Terminating: r.IntN(2) == 0, Local: r.IntN(2) == 0}
		addr := netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(a >> 8), byte(a)})
		if v6 {
			addr = netip.AddrFrom16([16]byte{0xfd, 9: byte(r.IntN(2)), 14: byte(a >> 8), 15: byte(a)})
		}
		e.Addr = netip.AddrPortFrom(addr, uint16(80+r.IntN(2)))
		out = append(out, e)
	}
	return out
}

// BenchmarkSelectEndpoints selects 10,000 endpoints of slices in the order of their names.
func BenchmarkSelectEndpoints(b *testing.B) {
	var list []*model.EndpointSlice
	for i := range 100 {
		s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)}, Family: model.IPv4, Ports: []model.SlicePort{{Port: 8080}}}
		for j := range 100 {
			k := i*100 + j
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, byte(k >> 8), byte(k)}), Ready: true, Serving: true})
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *model.EndpointSlice) int { return a.Name.Compare(b.Name) })
	svc := &model.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Port: 80}}}
	var port Port
	for b.Loop() {
		if SelectEndpointsInto(&port, svc, &svc.Ports[0], model.IPv4, list, NodeInfo{}); len(port.Endpoints) != 10_000 {
			b.Fatalf("%d endpoints", len(port.Endpoints))
		}
	}
}
