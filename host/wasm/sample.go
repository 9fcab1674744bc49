package wasm

import (
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Sample is a request for the self-test of plugins.
type Sample struct {
	Name    string
	Request *abi.Request
}

const sampleNow = 1_700_000_000_000 // ms

// Samples returns typical requests: different sizes, Services of several namespaces, both IP families, both pools, zones that are
// balanced, unbalanced or unknown, terminating endpoints, a later time, connection counts, metadata and state. Each call returns
// the same requests, which the caller may modify.
func Samples() []Sample {
	one := SampleRequest(1)
	v6 := SampleRequest(6)
	v6.Family = 6
	for i := range v6.Endpoints {
		a := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i + 1)})
		v6.Endpoints[i].Addr = netip.AddrPortFrom(a, 8080)
	}
	none := SampleRequest(0)
	other := SampleRequest(6)
	other.Namespace, other.Service, other.Port, other.PortNumber, other.Protocol = "bank", "ledger", "grpc", 9000, 17
	later := SampleRequest(10)
	later.Now, later.Generation = sampleNow+30_000, 7
	for i := range later.Endpoints {
		later.Endpoints[i].PriorWeight = 1
	}

	leaving := SampleRequest(8)
	for i := range 3 {
		e := &leaving.Endpoints[i]
		e.Conditions = abi.Serving | abi.Terminating
		e.TerminatingSince = sampleNow - int64(i)*10_000
		e.Weight = 0
	}
	allLeaving := SampleRequest(3)
	for i := range allLeaving.Endpoints {
		e := &allLeaving.Endpoints[i]
		e.Conditions = abi.Serving | abi.Terminating | abi.Chosen
		e.TerminatingSince = sampleNow
	}
	local := SampleRequest(3)
	local.Pool, local.ExternalPolicyLocal, local.InternalPolicyLocal = abi.PoolLocal, true, true
	for i := range local.Endpoints {
		e := &local.Endpoints[i]
		e.Conditions |= abi.Local
		e.Node, e.Zone = local.Node, local.Zone
	}
	unzoned := SampleRequest(5)
	unzoned.Zone, unzoned.Zones, unzoned.Port = "", nil, ""
	unzoned.Namespace, unzoned.Service, unzoned.PortNumber = "bank", "vault", 443
	for i := range unzoned.Endpoints {
		unzoned.Endpoints[i].Zone = ""
	}
	lopsided := SampleRequest(10)
	for i := range lopsided.Endpoints {
		lopsided.Endpoints[i].Zone = "zone-b"
	}
	for i := range lopsided.Zones {
		lopsided.Zones[i].Ready = 0
	}
	lopsided.Zones[1].Ready = 10
	counted := SampleRequest(10)
	counted.State = []byte{0, 1, 2, 3, 0xff, 0xfe, 7, 8, 9}
	counted.SessionAffinityMS = 10_800_000
	for i := range counted.Endpoints {
		e := &counted.Endpoints[i]
		e.Connections = uint32(i * i)
		e.PriorWeight = int32(i)
		e.Metadata = fmt.Sprintf("app=shop\nweight=%d", i+1)
	}
	return []Sample{
		{"1 endpoint", one}, {"no endpoint", none}, {"6 endpoints, IPv6", v6}, {"3 of 8 terminating", leaving},
		{"another namespace", other}, {"10 endpoints", SampleRequest(10)}, {"10 endpoints, 30 s later", later},
		{"all 3 terminating", allLeaving}, {"local pool", local}, {"no zones known", unzoned},
		{"all in another zone", lopsided}, {"connections, metadata, state", counted},
		{"100 endpoints", SampleRequest(100)}, {"1000 endpoints", SampleRequest(1000)},
	}
}

// SampleRequest returns a request with n ready endpoints, all chosen, spread over three zones of four nodes each.
func SampleRequest(n int) *abi.Request {
	req := &abi.Request{
		Now: sampleNow, Namespace: "shop", Service: "cart", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: "node-a-0", Zone: "zone-a", Generation: 1,
	}
	for z := range 3 {
		req.Zones = append(req.Zones, abi.Zone{
			Name: fmt.Sprintf("zone-%c", 'a'+z), Nodes: 4, MilliCPU: 16_000, Ready: uint32((n + 2 - z) / 3),
		})
	}
	for i := range n {
		zone := i % 3
		node := fmt.Sprintf("node-%c-%d", 'a'+zone, i/3%4)
		e := abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen,
			Node:       node, Zone: fmt.Sprintf("zone-%c", 'a'+zone), Weight: 1, PriorWeight: abi.NoWeight,
			ReadySince: sampleNow - 60_000 - int64(i)*1000, Connections: abi.ConnectionsUnknown,
		}
		if node == req.Node {
			e.Conditions |= abi.Local
		}
		req.Endpoints = append(req.Endpoints, e)
	}
	return req
}
