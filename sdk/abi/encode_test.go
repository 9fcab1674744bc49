package abi

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// sample is a request of n endpoints on n/3 nodes in 3 zones, as the host of a large cluster sees it: each with strings
// of its own.
func sample(n int) *Request {
	req := &Request{
		Now: 1_750_000_000_000, Namespace: "shop", Service: "web", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: "node-0", Zone: "zone-a", Generation: 7, State: []byte("state"), ExternalLocal: true, AffinityMS: 10_800_000,
		Zones: []Zone{{"zone-a", 4, 3, 16000}, {"zone-b", 4, 3, 16000}, {"zone-c", 2, 4, 8000}},
	}
	var nodes []string
	for i := range n/3 + 1 {
		nodes = append(nodes, fmt.Sprintf("node-%d.example.internal", i))
	}
	for i := range n {
		req.Endpoints = append(req.Endpoints, Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: Ready | Serving | Chosen, Node: strings.Clone(nodes[i*7%len(nodes)]), Zone: strings.Clone(req.Zones[i%3].Name), Weight: 1,
			PriorWeight: NoWeight, ReadySince: 1_749_000_000_000, Connections: NotCounted,
		})
	}
	return req
}

func BenchmarkAppendRequest(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var e Encoder
			req := sample(n)
			buf := e.AppendRequest(nil, req)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				buf = e.AppendRequest(buf[:0], req)
			}
		})
	}
}
