package wasm

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Sample is a request for the self-test of plugins.
type Sample struct {
	Name    string
	Request *abi.Request
}

const sampleNow = 1_700_000_000_000 // ms

// Samples returns typical requests: different sizes, Services of several namespaces, both IP families, both pools, zones that are
// balanced, unbalanced or unknown, endpoints that are terminating, held or not eligible, a later time, connection counts,
// outcomes and state. All have values of keys: any text, the empty one and none. Each call returns the same requests, which the
// caller may modify.
func Samples(keys ...string) []Sample {
	sample := func(n int) *abi.Request { return SampleRequest(n, keys...) }
	v6 := sample(6)
	v6.Family = 6
	for i := range v6.Endpoints {
		a := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i + 1)})
		v6.Endpoints[i].Addr = netip.AddrPortFrom(a, 8080)
	}
	other := sample(6)
	other.Namespace, other.Service, other.Port, other.PortNumber, other.Protocol = "bank", "ledger", "grpc", 9000, 17
	later := sample(10)
	later.Now, later.Generation = sampleNow+30_000, 7
	for i := range later.Endpoints {
		later.Endpoints[i].PriorWeight = 1
	}
	local := sample(3)
	local.Pool, local.ExternalPolicyLocal, local.InternalPolicyLocal = abi.PoolLocal, true, true
	for i := range local.Endpoints {
		e := &local.Endpoints[i]
		e.Conditions |= abi.Local
		e.Node, e.Zone = local.Node, local.Zone
	}
	counted := sample(10)
	counted.State = []byte{0, 1, 2, 3, 0xff, 0xfe, 7, 8, 9}
	for i := range 10 * abi.MaxEndpointState {
		counted.EndpointStates = append(counted.EndpointStates, byte(i*i))
	}
	counted.SessionAffinityMS, counted.ConnectionsAgeMS = 10_800_000, 1_500
	for i := range counted.Endpoints {
		e := &counted.Endpoints[i]
		e.Connections = uint32(i * i)
		e.PriorWeight = int32(i)
	}
	recovered := watched(sample(10))
	recovered.Now += 20_000
	for i := range recovered.Endpoints {
		o := &recovered.Endpoints[i].Outcomes
		o.Attempts, o.Answered, o.Refused, o.Unanswered = 5, 5, 0, 0
	}
	return []Sample{
		{"1 endpoint", sample(1)}, {"no endpoint", sample(0)}, {"6 endpoints, IPv6", v6}, {"3 of 8 terminating", leaving(sample(8))},
		{"another namespace", other}, {"10 endpoints", sample(10)}, {"10 endpoints, 30 s later", later},
		{"all 3 terminating", allLeaving(sample(3))}, {"local pool", local}, {"no zones known", unzoned(sample(5))},
		{"all in another zone", lopsided(sample(10))}, {"connections, state", counted}, {"outcomes", watched(sample(10))}, {"outcomes, 20 s later", recovered},
		{"4 of 9 not eligible", unready(sample(9), 0)}, {"4 of 9 held", unready(sample(9), abi.Held|abi.Eligible)},
		{"later in a chain, capacities", reduced(sample(8))}, {"later in a chain, groups", grouped(reduced(sample(9)))},
		{"100 endpoints", sample(100)}, {"1000 endpoints", sample(1000)},
	}
}

// reduced has the capacities that plugins before have left.
func reduced(req *abi.Request) *abi.Request {
	for i := range req.Endpoints {
		if req.Endpoints[i].Capacity = uint32(abi.One / (i + 1)); i%5 == 4 {
			req.Endpoints[i].Capacity = 0
		}
	}
	return req
}

// grouped has the shares and groups that plugins before have set.
func grouped(req *abi.Request) *abi.Request {
	req.Groups = []uint32{95, 0, 5}
	for i := range req.Endpoints {
		req.Endpoints[i].Share, req.Endpoints[i].Group = uint32(i%4*abi.One), uint16(i%3)
	}
	return req
}

// leaving has terminating endpoints.
func leaving(req *abi.Request) *abi.Request {
	for i := range 3 {
		e := &req.Endpoints[i]
		e.Conditions = abi.Serving | abi.Terminating | abi.Eligible
		e.TerminatingSince = sampleNow - int64(i)*10_000
	}
	req.Begin()
	return req
}

func allLeaving(req *abi.Request) *abi.Request {
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		e.Conditions = abi.Serving | abi.Terminating | abi.Chosen | abi.Eligible
		e.TerminatingSince = sampleNow
	}
	return req
}

// unzoned has neither zones nor Nodes.
func unzoned(req *abi.Request) *abi.Request {
	req.Zone, req.Zones, req.Port = "", nil, ""
	req.NodeIndex, req.NodeCount = abi.NoIndex, 0
	req.Namespace, req.Service, req.PortNumber = "bank", "vault", 443
	for i := range req.Endpoints {
		req.Endpoints[i].Zone = ""
	}
	return req
}

// lopsided has all endpoints in one zone, which is not that of the node.
func lopsided(req *abi.Request) *abi.Request {
	for i := range req.Endpoints {
		req.Endpoints[i].Zone = "zone-b"
	}
	for i := range req.Zones {
		z := &req.Zones[i]
		z.Ready, z.Serving, z.Total = 0, 0, 0
	}
	n := uint32(len(req.Endpoints))
	req.Zones[1].Ready, req.Zones[1].Serving, req.Zones[1].Total = n, n, n
	return req
}

// watched has outcomes: of endpoints that answer, refuse, stay silent, do some of each, and get no connections.
func watched(req *abi.Request) *abi.Request {
	req.OutcomesWindowMS = 10_000
	for i := range req.Endpoints {
		o := abi.Outcomes{Attempts: 40, Since: sampleNow - 600_000}
		switch i % 5 {
		case 0:
			o.Answered = 40
		case 1:
			o.Refused = 40
		case 2:
			o.Unanswered = 40
		case 3:
			o.Answered, o.Refused, o.Unanswered = 20, 10, 8 // and two that are too young
		case 4:
			o.Attempts = 0
		}
		o.TotalAttempts, o.TotalAnswered = uint64(o.Attempts)+1<<33, uint64(o.Answered)+1<<33
		o.TotalRefused, o.TotalUnanswered = uint64(o.Refused), uint64(o.Unanswered)
		req.Endpoints[i].Outcomes = o
	}
	return req
}

// unready has endpoints that are not ready and have the conditions instead.
func unready(req *abi.Request, conditions uint32) *abi.Request {
	for i := range 4 {
		e := &req.Endpoints[2*i]
		e.Conditions = e.Conditions&abi.Local | conditions
		e.ReadySince = abi.NoTime
		for z := range req.Zones {
			if req.Zones[z].Name == e.Zone {
				req.Zones[z].Ready--
				req.Zones[z].Serving--
			}
		}
	}
	req.Begin()
	return req
}

// SampleRequest returns a request with n ready endpoints, all chosen, spread over three zones of four nodes each, with values of
// keys.
func SampleRequest(n int, keys ...string) *abi.Request {
	req := &abi.Request{
		Now: sampleNow, Namespace: "shop", Service: "cart", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: "node-a-0", NodeIndex: 0, NodeCount: 12, Zone: "zone-a", Generation: 1, ConnectionsAgeMS: abi.NoAge, Keys: keys,
	}
	for z := range 3 {
		count := uint32((n + 2 - z) / 3)
		req.Zones = append(req.Zones, abi.Zone{
			Name: fmt.Sprintf("zone-%c", 'a'+z), Nodes: 4, MilliCPU: 16_000, Ready: count, Serving: count, Total: count,
		})
	}
	req.Endpoints = make([]abi.Endpoint, 0, n)
	for i := range n {
		zone := i % 3
		node := fmt.Sprintf("node-%c-%d", 'a'+zone, i/3%4)
		e := abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible,
			Node:       node, Zone: fmt.Sprintf("zone-%c", 'a'+zone), Pod: fmt.Sprintf("cart-6d4cf56db6-%05d", i), PriorWeight: abi.NoWeight,
			ReadySince: sampleNow - 60_000 - int64(i)*1000, Connections: abi.ConnectionsUnknown,
		}
		if node == req.Node {
			e.Conditions |= abi.Local
		}
		req.Endpoints = append(req.Endpoints, e)
	}
	req.Begin()
	for k, key := range keys {
		if !abi.IsEndpointKey(key) {
			req.ServiceValues = append(req.ServiceValues, sampleValue(key, n+k))
			continue
		}
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			e.Values = append(e.Values, sampleValue(key, i+k))
		}
	}
	return req
}

// sampleValue returns one of several values of a key. Whoever writes an annotation can write anything.
func sampleValue(key string, i int) abi.Value {
	if key == abi.KeyPodCPU {
		return abi.Value{Text: fmt.Sprint(250 * (i % 5)), Present: i%5 > 0}
	}
	if strings.HasPrefix(key, abi.KeyLoad) {
		return abi.Value{Text: fmt.Sprintf("%d.%d", i%7/5, 1+i%9), Present: i%11 > 0}
	}
	texts := [...]string{"stable", "canary", "3", "", "-1", "100", "1e9", "{\"weight\": 5}", strings.Repeat("x", 300), "\x00\xff\n"}
	i %= len(texts) + 2
	if i >= len(texts) {
		return abi.Value{}
	}
	return abi.Value{Text: texts[i], Present: true}
}
