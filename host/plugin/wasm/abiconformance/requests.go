package abiconformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// requests returns those of the self-test, and others at the ends of ranges.
func requests(keys []string) []wasm.Sample {
	all := wasm.Samples(keys...)
	last := wasm.SampleRequest(20, keys...)
	last.Now, last.Generation, last.PortNumber, last.Protocol = 4_102_444_800_000, 1<<63, 65535, 132
	last.SessionAffinityMS, last.ConnectionsAgeMS, last.OutcomesWindowMS = 86_400_000, 1<<31, 1<<31
	last.NodeIndex, last.NodeCount = 1<<20, 1<<20 // a node that is not ready has the position that it would have
	for i := range last.Zones {
		z := &last.Zones[i]
		z.Nodes, z.Ready, z.Serving, z.Total, z.MilliCPU = 1<<31, 1<<31, 1<<31, 1<<31, 1<<62
	}
	for i := range last.Endpoints {
		e := &last.Endpoints[i]
		e.Capacity, e.Share, e.Group, e.PriorWeight, e.Connections = 1<<32-1, 1<<32-1, uint16(i*3), abi.MaxTotal, 1<<32-2
		e.ReadySince = last.Now + 3_600_000 // a clock that was wrong
		o := uint64(1) << 62
		e.Outcomes = abi.Outcomes{Attempts: 1<<32 - 1, Answered: 1<<32 - 1, Refused: 1<<32 - 1, Unanswered: 1<<32 - 1,
			TotalAttempts: o, TotalAnswered: o, TotalRefused: o, TotalUnanswered: o, Since: last.Now + 1000}
	}
	last.Groups = slices.Repeat([]uint32{1<<32 - 1}, abi.MaxGroups)
	first := wasm.SampleRequest(20, keys...)
	first.Now, first.Zones, first.Node, first.Namespace, first.Service, first.Port = 0, nil, "", "", "", ""
	for i := range first.Endpoints {
		e := &first.Endpoints[i]
		e.Node, e.Pod, e.ReadySince = "", "", abi.NoTime
		e.Addr = netip.AddrPortFrom(first.Endpoints[0].Addr.Addr(), uint16(i)) // one address, many ports
	}
	mixed := wasm.SampleRequest(64, keys...)
	mixed.Pool, mixed.OutcomesWindowMS, mixed.ConnectionsAgeMS = abi.PoolLocal, 500, 0
	for i := range mixed.Endpoints {
		e := &mixed.Endpoints[i]
		e.Conditions = uint32(i*8+7) & 0x1FF // any bits, also those that exclude each other
		if e.Capacity = 0; e.Conditions&abi.Eligible != 0 {
			e.Capacity = uint32(i % 3 * abi.One / 2)
		}
		e.Share, e.Group = uint32(i%5*abi.One), uint16(i%3)
		e.TerminatingSince, e.Connections = int64(i%2)*(mixed.Now-int64(i)*1000), uint32(i)
	}
	mixed.Endpoints[0].Conditions = abi.Ready | abi.Serving | abi.Chosen | abi.Eligible
	mixed.Endpoints[0].Capacity, mixed.Endpoints[0].Share = 1, 1
	mixed.Groups = []uint32{0, 1, 99}
	return append(all, wasm.Sample{Name: "largest numbers", Request: last}, wasm.Sample{Name: "zeros and no names", Request: first},
		wasm.Sample{Name: "all conditions", Request: mixed}, wasm.Sample{Name: "5000 endpoints", Request: wasm.SampleRequest(5000, keys...)})
}

// textRequests returns requests whose names and values are any bytes.
func textRequests(keys []string) (all []wasm.Sample) {
	for _, text := range []struct{ name, text string }{
		{"not UTF-8", "\xff\xfe\x00\x80"}, {"253 bytes", strings.Repeat("long.", 50) + "end"}, {"control characters", "\x1b[31m\n\t\u202e"}, {"a space", " "},
	} {
		req := wasm.SampleRequest(6, keys...)
		req.Namespace, req.Service, req.Port, req.Node = text.text, text.text, text.text, text.text
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			e.Node, e.Pod = fmt.Sprint(text.text, i%2), fmt.Sprint(text.text, i)
			for k := range e.Values {
				e.Values[k] = abi.Value{Text: text.text, Present: true}
			}
		}
		for k := range req.ServiceValues {
			req.ServiceValues[k] = abi.Value{Text: text.text, Present: true}
		}
		for i := range req.Zones {
			name := fmt.Sprint(text.text, i)
			for j := range req.Endpoints {
				if req.Endpoints[j].Zone == req.Zones[i].Name {
					req.Endpoints[j].Zone = name
				}
			}
			if req.Zone == req.Zones[i].Name {
				req.Zone = name
			}
			req.Zones[i].Name = name
		}
		all = append(all, wasm.Sample{Name: "names and values of " + text.name, Request: req})
	}
	empty := wasm.SampleRequest(6, keys...)
	for i := range empty.Endpoints {
		for k := range empty.Endpoints[i].Values {
			empty.Endpoints[i].Values[k] = abi.Value{Present: true}
		}
	}
	for k := range empty.ServiceValues {
		empty.ServiceValues[k] = abi.Value{Present: true}
	}
	return append(all, wasm.Sample{Name: "empty values", Request: empty})
}

// The length of the sequence of later, its endpoints, and the time between its requests in milliseconds.
const (
	sequenceLength    = 128
	sequenceEndpoints = 10
	sequencePeriod    = 10_000
)

// later returns request n of a sequence in which in each request one endpoint has left and another has come.
func later(n int, keys []string) *abi.Request {
	req := wasm.SampleRequest(sequenceEndpoints, keys...)
	req.Now += int64(n) * sequencePeriod
	req.Generation = uint64(n + 1)
	req.OutcomesWindowMS, req.ConnectionsAgeMS = sequencePeriod, 0
	for i := range req.Endpoints {
		e, number := &req.Endpoints[i], n+i
		e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(number >> 8), byte(number)}), 8080)
		e.Pod = fmt.Sprintf("cart-%04d", number)
		e.ReadySince = req.Now - int64(sequenceEndpoints-i)*sequencePeriod
		e.Connections = uint32(number % 7)
		age := uint64(sequenceEndpoints - i)
		e.Outcomes = abi.Outcomes{Attempts: 20, Answered: 20, TotalAttempts: 20 * age, TotalAnswered: 20 * age, Since: e.ReadySince}
		if number%3 == 0 {
			e.Outcomes.Answered, e.Outcomes.Refused, e.Outcomes.TotalAnswered, e.Outcomes.TotalRefused = 0, 20, 0, 20*age
		}
	}
	return req
}
