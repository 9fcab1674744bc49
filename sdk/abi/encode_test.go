package abi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strings"
	"testing"
)

// zoned is the view of a plugin that needs Nodes.
var zoned = View{Settings: NoSettings, Needs: NeedNodes}

// sample returns a request with n endpoints on n/3 nodes in 3 zones, as in a large cluster, with distinct strings for each.
func sample(n int) *Request {
	req := &Request{
		Now: 1_750_000_000_000, Namespace: "shop", Service: "web", Port: "http", PortNumber: 80, Protocol: 6, Family: 4,
		Node: "node-0", Zone: "zone-a", Generation: 7, State: []byte("state"), ExternalPolicyLocal: true, SessionAffinityMS: 10_800_000,
		Zones:     []Zone{{"zone-a", 4, 3, 3, 3, 16000}, {"zone-b", 4, 3, 3, 3, 16000}, {"zone-c", 2, 4, 4, 4, 8000}},
		NodeCount: 10, ConnectionsAgeMS: NoAge,
	}
	var nodes []string
	for i := range n/3 + 1 {
		nodes = append(nodes, fmt.Sprintf("node-%d.example.internal", i))
	}
	for i := range n {
		req.Endpoints = append(req.Endpoints, Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: Ready | Serving | Chosen | Eligible, Pod: fmt.Sprintf("web-7d9f8b6c5d-%05d", i), Node: strings.Clone(nodes[i*7%len(nodes)]), Zone: strings.Clone(req.Zones[i%3].Name), Capacity: One, Share: One,
			PriorWeight: NoWeight, ReadySince: 1_749_000_000_000, Connections: ConnectionsUnknown,
		})
	}
	return req
}

func BenchmarkAppendRequest(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var e Encoder
			req := sample(n)
			buf := e.AppendRequest(nil, req, zoned)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				buf = e.AppendRequest(buf[:0], req, zoned)
			}
		})
	}
}

// BenchmarkInputs measures what inputs on request add to a request of 1000 endpoints.
func BenchmarkInputs(b *testing.B) {
	req := sample(1000)
	req.OutcomesWindowMS, req.Keys = 10_000, []string{"label:track", "annotation:example.com/capacity"}
	for i := range req.Endpoints {
		req.Endpoints[i].Values = []Value{{"stable", true}, {fmt.Sprint(i % 10), true}}
	}
	for _, c := range []struct {
		name string
		v    View
	}{
		{"none", View{}}, {"connections", View{Needs: NeedConnections}}, {"outcomes", View{Needs: NeedOutcomes}},
		{"podNames", View{Needs: NeedPodNames}}, {"keys", View{Keys: req.Keys}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var e Encoder
			buf := e.AppendRequest(nil, req, c.v)
			b.ReportAllocs()
			for b.Loop() {
				buf = e.AppendRequest(buf[:0], req, c.v)
			}
		})
	}
}

func TestStringIDsAreStableAndUnique(t *testing.T) {
	var e Encoder
	id := func(req *Request, at int) uint32 {
		return binary.LittleEndian.Uint32(e.AppendRequest(nil, req, zoned)[at:])
	}
	web, api := &Request{Service: "web"}, &Request{Service: "api"}
	first := id(web, ReqService)
	if second := id(api, ReqService); second == first {
		t.Errorf("web and api are both %d", first)
	}
	if again := id(&Request{Service: strings.Clone("web"), Zone: "a"}, ReqService); again != first {
		t.Errorf("web was %d, is %d", first, again)
	}
	if none := id(web, ReqZone); none != NoString {
		t.Errorf("the empty zone has the id %d", none)
	}
	e.Reset()
	if fresh := id(api, ReqService); fresh != 0 {
		t.Errorf("after a Reset the first id is %d", fresh)
	}
}

func TestStringTableContainsTheStringsOfTheRequest(t *testing.T) {
	var e Encoder
	for _, n := range []int{300, 10, 300} {
		b := e.AppendRequest(nil, sample(n), zoned)
		le := binary.LittleEndian
		got := map[string]int{}
		for i := range le.Uint32(b[ReqStringsCount:]) {
			r := b[le.Uint32(b[ReqStringsOffset:])+i*StringSize:]
			got[string(b[le.Uint32(r[StringOffset:]):][:le.Uint32(r[StringLength:])])]++
		}
		want := map[string]int{"shop": 1, "web": 1, "http": 1, "node-0": 1, "zone-a": 1, "zone-b": 1, "zone-c": 1}
		for _, ep := range sample(n).Endpoints {
			want[ep.Node] = 1
		}
		if !maps.Equal(got, want) {
			t.Errorf("%d endpoints: strings %v, want %v", n, got, want)
		}
	}
}

func TestEncodingIsDeterministic(t *testing.T) {
	var a, b Encoder
	dirty := bytes.Repeat([]byte{0xFF}, 1<<16)
	for _, n := range []int{1, 50, 3, 50} {
		fresh := a.AppendRequest(nil, sample(n), zoned)
		reused := b.AppendRequest(dirty[:0], sample(n), zoned) // in a buffer with old content
		if !bytes.Equal(fresh, reused) {
			t.Errorf("%d endpoints: bytes differ", n)
		}
	}
}

func TestRequestLargerThanTheBufferIsReallocated(t *testing.T) {
	var e Encoder
	memory := make([]byte, 4096)
	small, large := sample(1), sample(100)
	if b := e.AppendRequest(memory[0:0:2048], small, zoned); len(b) > 2048 || &b[0] != &memory[0] {
		t.Error("a request that fits was not written in place")
	}
	b := e.AppendRequest(memory[0:0:2048], large, zoned)
	if len(b) <= 2048 || &b[0] == &memory[0] {
		t.Errorf("%d bytes do not fit 2048", len(b))
	}
	if bytes.ContainsFunc(memory[2048:], func(r rune) bool { return r != 0 }) {
		t.Error("written beyond the buffer")
	}
}

func TestFullEncoderKeepsWorking(t *testing.T) {
	var e Encoder
	long := strings.Repeat("x", 1<<20)
	for i := range maxStringBytes>>20 + 1 {
		if e.Full() != (i >= maxStringBytes>>20) {
			t.Fatalf("full %v after %d MiB", e.Full(), i)
		}
		e.AppendRequest(nil, &Request{Service: fmt.Sprint(i, long)}, zoned)
	}
	if b := e.AppendRequest(nil, &Request{Service: "one more"}, zoned); !bytes.Contains(b, []byte("one more")) {
		t.Error("a full encoder left a string out")
	}
	if e.Reset(); e.Full() {
		t.Error("full after a Reset")
	}
}

func TestStringTableIsCompleteAfterRoundOverflow(t *testing.T) {
	var e Encoder
	e.AppendRequest(nil, &Request{Service: "web"}, zoned)
	e.interner.round = math.MaxUint32 - 1
	for range 4 {
		if b := e.AppendRequest(nil, &Request{Service: "web"}, zoned); !bytes.Contains(b, []byte("web")) {
			t.Error("a string is missing")
		}
	}
}

func TestEncodingDoesNotAllocate(t *testing.T) {
	var e Encoder
	req := sample(200)
	buf := e.AppendRequest(nil, req, zoned)
	if n := testing.AllocsPerRun(100, func() { buf = e.AppendRequest(buf[:0], req, zoned) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
