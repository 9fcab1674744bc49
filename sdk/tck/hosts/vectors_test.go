package hosts

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"math"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

var update = flag.Bool("update", false, "rewrite the golden requests and responses")

// The conditions of endpoints in this test, as numbers of ABI.md.
const (
	ready    = 1 + 2 + 16 + 128 // ready, serving, chosen, eligible
	unready  = 0
	leaving  = 2 + 4 + 128 // serving, terminating, eligible
	allNeeds = 31
)

const now = 1_700_000_000_000

// endpoint returns a ready endpoint.
func endpoint(addr, node, zone string) abi.Endpoint {
	return abi.Endpoint{Addr: netip.MustParseAddrPort(addr), Conditions: ready, Node: node, Zone: zone, Pod: "pod-" + node, Capacity: 1_000_000, Share: 1_000_000, PriorWeight: -1,
		ReadySince: now - 60_000, Connections: 0xFFFFFFFF}
}

// request returns a request of a Service port without zones, counted connections, outcomes or keys.
func request(endpoints ...abi.Endpoint) *abi.Request {
	return &abi.Request{Now: now, Namespace: "shop", Service: "cart", Port: "http", PortNumber: 666, Protocol: 6, Family: 4, Node: "n1", NodeIndex: 0xFFFFFFFF,
		Zone: "a", ConnectionsAgeMS: 0xFFFFFFFF, Generation: 1, Endpoints: endpoints}
}

// requestCases states the golden requests, without their bytes. The port is that of reference guests, and a request is short
// enough for the echo.
func requestCases() []RequestVector {
	plain := func() *abi.Request {
		r := request(endpoint("10.0.0.1:8080", "n1", "a"), endpoint("10.0.0.2:8080", "n2", "b"), endpoint("10.0.0.3:8080", "n2", "b"))
		r.Zones = []abi.Zone{{Name: "a", Nodes: 2, Ready: 1, Serving: 1, Total: 1, MilliCPU: 8000}, {Name: "b", Nodes: 3, Ready: 2, Serving: 2, Total: 2, MilliCPU: 1 << 40}}
		return r
	}
	full := func() *abi.Request { // all inputs are known
		r := plain()
		r.NodeIndex, r.NodeCount, r.ConnectionsAgeMS, r.OutcomesWindowMS = 1, 5, 1500, 500
		r.EndpointStates = slices.Concat(bytes.Repeat([]byte{1, 2, 3, 0xFF}, 8), make([]byte, 32), []byte("a state that ends with zero"), make([]byte, 5))
		for i := range r.Endpoints {
			e := &r.Endpoints[i]
			n := uint32(i + 1)
			e.Connections = 10 * n
			e.Outcomes = abi.Outcomes{Attempts: n, Answered: n + 1, Refused: n + 2, Unanswered: n + 3, TotalAttempts: uint64(n) << 40, TotalAnswered: uint64(n) << 33,
				TotalRefused: uint64(n) + 7, TotalUnanswered: uint64(n) + 8, Since: now - 5000*int64(n)}
		}
		return r
	}
	keys := []string{"label:tier", "service-label:team", "annotation:example.com/capacity", "request:cpu", "service-annotation:example.com/a",
		"node-label:example.com/pool", "namespace-label:env"}
	keyed := func() *abi.Request {
		r := plain()
		r.Keys = keys
		r.ServiceValues = []abi.Value{{Text: "payments", Present: true}, {}, {Text: "prod", Present: true}}
		r.Endpoints[0].Values = []abi.Value{{Text: "gold", Present: true}, {Text: "", Present: true}, {Text: "250", Present: true}, {Text: "spot", Present: true}}
		r.Endpoints[1].Values = []abi.Value{{}, {Text: "gold", Present: true}, {}, {}}
		r.Endpoints[2].Values = []abi.Value{{Text: "silver", Present: true}, {}, {Text: "250", Present: true}, {Text: "spot", Present: true}}
		return r
	}
	bare := request(endpoint("10.0.0.1:80", "", ""))
	bare.Namespace, bare.Service, bare.Port, bare.Node, bare.Zone = "", "", "", "", ""
	bare.Endpoints[0].Pod, bare.Endpoints[0].ReadySince = "", 0
	six := request(endpoint("[2001:db8::1]:8080", "n1", "a"), endpoint("[2001:db8::2]:8080", "n2", "b"), endpoint("[fd00::ffff:a00:3]:65535", "n3", ""))
	six.Family, six.Protocol, six.Pool, six.InternalPolicyLocal, six.SessionAffinityMS = 6, 17, 1, true, 10_800_000
	conditions := request()
	for i, c := range []uint32{ready + 8, ready + 32, ready + 64, leaving, unready, 2, 128 + 256, ready + 8 + 32 + 64} {
		e := endpoint("10.0.0.1:8080", "n1", "a")
		e.Addr, e.Conditions = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 8080), c
		if c&16 == 0 {
			e.Capacity, e.ReadySince = 0, 0
		}
		if c&4 != 0 {
			e.TerminatingSince = now - 3000
		}
		e.PriorWeight = int32(i * 9000)
		conditions.Endpoints = append(conditions.Endpoints, e)
	}
	conditions.ExternalPolicyLocal = true
	state := request()
	for i := range 8 {
		e := endpoint("10.0.0.1:8080", "n1", "a")
		e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 8080)
		state.Endpoints = append(state.Endpoints, e)
	}
	for i := range abi.MaxStateLen {
		state.State = append(state.State, byte(i*7))
	}
	short := plain()
	short.State = []byte{0xFF}
	texts := request(endpoint("10.0.0.1:8080", "node with spaces", "zürich-1"), endpoint("10.0.0.2:8080", "n\n\x1b", "\x00"), endpoint("10.0.0.3:8080", "shop", "cart"))
	large := full()
	large.Now, large.Generation, large.PortNumber, large.Protocol = 4_102_444_800_000, math.MaxUint64, 666, 132
	large.NodeIndex, large.NodeCount, large.ConnectionsAgeMS, large.OutcomesWindowMS = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF
	for i := range large.Endpoints {
		e := &large.Endpoints[i]
		e.Addr = netip.AddrPortFrom(e.Addr.Addr(), 65535)
		e.Capacity, e.Share, e.Group = math.MaxUint32, math.MaxUint32, 15
		e.PriorWeight, e.Connections, e.ReadySince = 1000, 0xFFFFFFFE, large.Now
	}
	large.Groups = slices.Repeat([]uint32{math.MaxUint32}, 16)
	large.Zones[0] = abi.Zone{Name: "a", Nodes: math.MaxUint32, Ready: math.MaxUint32, Serving: math.MaxUint32, Total: math.MaxUint32, MilliCPU: math.MaxUint64}
	grouped := plain()
	grouped.Groups = []uint32{95, 5}
	for i := range grouped.Endpoints {
		e := &grouped.Endpoints[i]
		e.Capacity, e.Share, e.Group = uint32(1_000_000/(i+1)), uint32(3_000_000*i), uint16(i%2)
	}
	later := plain()
	later.Now, later.Generation, later.Endpoints = now+1000, 2, append(later.Endpoints[1:], endpoint("10.0.0.4:8080", "n4", "c"))
	unlisted := plain()
	unlisted.Zones, unlisted.Zone = unlisted.Zones[1:], "elsewhere"
	return []RequestVector{
		{Name: "plain", Text: "three endpoints in two zones; a guest without needs", Request: plain()},
		{Name: "a later request", Text: "texts keep the ids that they have got in the instance; new ones get new ids", After: "plain", Request: later},
		{Name: "no settings", Text: "the handle is NO_SETTINGS", Handle: 0xFFFFFFFF, Request: plain()},
		{Name: "no endpoints", Text: "empty sections", Request: request()},
		{Name: "no names", Text: "the empty string is NO_STRING, and not in the table; an unknown zone has no row", Request: bare},
		{Name: "IPv6", Text: "IPv6, UDP, the local pool, session affinity, internalTrafficPolicy Local", Request: six},
		{Name: "conditions", Text: "each condition; externalTrafficPolicy Local; weights of the last answer; times", Request: conditions},
		{Name: "a zone without a row", Text: "zones that are not in the table have the index NO_ZONE", Request: unlisted},
		{Name: "inputs that are not asked for", Text: "the host knows everything, the guest has no needs: all of it is unknown", Request: full()},
		{Name: "connections", Text: "NeedConnections only", Needs: 1, Request: full()},
		{Name: "outcomes", Text: "NeedOutcomes only", Needs: 2, Request: full()},
		{Name: "nodes", Text: "NeedNodes only", Needs: 4, Request: full()},
		{Name: "names of Pods", Text: "NeedPodNames only", Needs: 8, Request: full()},
		{Name: "states of endpoints", Text: "NeedEndpointState only; that of the second is 0", Needs: 16, Request: full()},
		{Name: "no states of endpoints", Text: "NeedEndpointState, and no endpoint has a state: the section is absent, or all is 0", Needs: 16, Request: plain()},
		{Name: "inputs that are unknown", Text: "the guest needs everything, the host knows nothing: no section of outcomes", Needs: allNeeds, Request: plain()},
		{Name: "all inputs", Text: "the guest needs everything, and the host knows it", Needs: allNeeds, Request: full()},
		{Name: "keys", Text: "values of Pods and of the Service, some absent, some empty", Keys: keys, Request: keyed()},
		{Name: "keys in another order", Text: "a guest that declares some keys, in its own order, and one of which nothing is known",
			Keys: []string{"service-annotation:example.com/a", "request:cpu", "label:other", "service-label:team", "label:tier"}, Request: keyed()},
		{Name: "keys of Services only", Text: "no values of Pods: pod_keys is 0", Keys: []string{"service-label:team"}, Request: keyed()},
		{Name: "a state of one byte", Text: "what follows is aligned to 8 bytes", Request: short},
		{Name: "the longest state", Text: "1024 bytes", Request: state},
		{Name: "groups", Text: "the second plugin of a chain or a later one: capacities, shares and two groups", Request: grouped},
		{Name: "texts", Text: "texts with any characters; one text for several things has one id", Request: texts},
		{Name: "the largest numbers", Text: "numbers have all of their bits; JSON has 64-bit integers here", Needs: allNeeds, Request: large},
	}
}

// second is a second encoder, written from ABI.md, for the layout that README.md describes. It is slow, and knows nothing of
// sdk/abi but the types of messages.
type second struct{ ids []string }

func (s *second) id(text string) uint32 {
	if text == "" {
		return 0xFFFFFFFF
	}
	for i, known := range s.ids {
		if known == text {
			return uint32(i)
		}
	}
	s.ids = append(s.ids, text)
	return uint32(len(s.ids) - 1)
}

func (s *second) encode(q *abi.Request, needs uint32, keys []string, handle uint32) []byte {
	type section struct {
		b             []byte
		count, stride int
	}
	le := binary.LittleEndian
	u16 := func(b []byte, v uint16) []byte { return le.AppendUint16(b, v) }
	u32 := func(b []byte, v uint32) []byte { return le.AppendUint32(b, v) }
	u64 := func(b []byte, v uint64) []byte { return le.AppendUint64(b, v) }
	pad := func(b []byte) []byte {
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
		return b
	}
	var used []string // in the order of first use
	id := func(text string) uint32 {
		if text != "" && !slices.Contains(used, text) {
			used = append(used, text)
		}
		return s.id(text)
	}
	row := func(zone string) uint16 {
		for i, z := range q.Zones {
			if z.Name == zone && zone != "" {
				return uint16(i)
			}
		}
		return 0xFFFF
	}
	unless := func(bit uint32, v, unknown uint32) uint32 {
		if needs&bit == 0 {
			return unknown
		}
		return v
	}

	var zones, endpoints, outcomes, values, services, groups, states, state section
	zones = section{count: len(q.Zones), stride: 32}
	for _, z := range q.Zones {
		cpu := z.MilliCPU
		if needs&4 == 0 {
			cpu = 0
		}
		b := u32(u32(u32(u32(u32(u32(nil, id(z.Name)), unless(4, z.Nodes, 0)), z.Ready), z.Serving), z.Total), 0)
		zones.b = append(zones.b, u64(b, cpu)...)
	}
	endpoints = section{count: len(q.Endpoints), stride: 72}
	for _, e := range q.Endpoints {
		addr := e.Addr.Addr().As16()
		zone, node, pod := id(e.Zone), id(e.Node), uint32(0xFFFFFFFF)
		if needs&8 != 0 {
			pod = id(e.Pod)
		}
		b := u32(u16(u16(addr[:], e.Addr.Port()), row(e.Zone)), e.Conditions)
		b = u32(u32(u32(u32(b, node), zone), e.Capacity), e.Share)
		b = u64(u64(b, uint64(e.ReadySince)), uint64(e.TerminatingSince))
		b = u32(u32(b, unless(1, e.Connections, 0xFFFFFFFF)), pod)
		endpoints.b = append(endpoints.b, u16(u16(u32(b, uint32(e.PriorWeight)), e.Group), 0)...)
	}
	if needs&2 != 0 && q.OutcomesWindowMS != 0 {
		outcomes = section{count: len(q.Endpoints), stride: 56}
		for _, e := range q.Endpoints {
			o := e.Outcomes
			b := u32(u32(u32(u32(nil, o.Attempts), o.Answered), o.Refused), o.Unanswered)
			b = u64(u64(u64(u64(b, o.TotalAttempts), o.TotalAnswered), o.TotalRefused), o.TotalUnanswered)
			outcomes.b = append(outcomes.b, u64(b, uint64(o.Since))...)
		}
	}
	var podKeys, serviceKeys []string
	split := func(keys []string) (pods, services []string) {
		for _, k := range keys {
			if strings.HasPrefix(k, "service-") || strings.HasPrefix(k, "namespace-") {
				services = append(services, k)
			} else {
				pods = append(pods, k)
			}
		}
		return pods, services
	}
	podKeys, serviceKeys = split(keys)
	knownPods, knownServices := split(q.Keys)
	value := func(key string, known []string, of []abi.Value) uint32 {
		for i, k := range known {
			if k == key && of[i].Present {
				return id(of[i].Text)
			}
		}
		return 0xFFFFFFFE
	}
	if len(podKeys) > 0 {
		values = section{count: len(q.Endpoints), stride: (4*len(podKeys) + 7) / 8 * 8}
		for _, e := range q.Endpoints {
			var b []byte
			for _, k := range podKeys {
				b = u32(b, value(k, knownPods, e.Values))
			}
			values.b = append(values.b, pad(b)...)
		}
	}
	for _, k := range serviceKeys {
		services.b = u32(services.b, value(k, knownServices, q.ServiceValues))
	}
	services.count = len(serviceKeys)
	for _, part := range q.Groups {
		groups.b = u32(u32(groups.b, part), 0)
		groups.count, groups.stride = len(q.Groups), 8
	}
	if needs&16 != 0 && len(q.EndpointStates) > 0 {
		states = section{b: q.EndpointStates, count: len(q.Endpoints), stride: 32}
	}
	state = section{b: q.State, count: len(q.State)}

	body := []byte{}
	place := func(x section) uint32 {
		at := 200 + len(body)
		body = pad(append(body, x.b...))
		return uint32(at)
	}
	three := func(b []byte, at uint32, x section) []byte {
		return u32(u32(u32(b, at), uint32(x.count)), uint32(x.stride))
	}
	endpointsAt, zonesAt := place(endpoints), place(zones)
	var outcomesAt, valuesAt, servicesAt uint32
	if outcomes.stride > 0 {
		outcomesAt = place(outcomes)
	}
	if values.stride > 0 {
		valuesAt = place(values)
	}
	if len(keys) > 0 {
		servicesAt = place(services)
	}
	var groupsAt uint32
	if groups.count > 0 {
		groupsAt = place(groups)
	}
	var statesAt uint32
	if states.count > 0 {
		statesAt = place(states)
	}
	stateAt := place(state)

	h := u16(u16([]byte("SLRQ"), 2), 1)
	h = u32(u32(h, 0), 200) // total is set below
	h = u64(u64(h, uint64(q.Now)), q.Generation)
	h = u32(u32(u32(u32(u32(h, id(q.Namespace)), id(q.Service)), id(q.Port)), id(q.Node)), id(q.Zone))
	policy := byte(0)
	if q.InternalPolicyLocal {
		policy |= 1
	}
	if q.ExternalPolicyLocal {
		policy |= 2
	}
	h = u16(append(u16(h, q.PortNumber), q.Protocol, q.Family, q.Pool, policy), row(q.Zone))
	h = u64(u32(h, handle), uint64(q.SessionAffinityMS))
	h = three(three(h, endpointsAt, endpoints), zonesAt, zones)
	h = u32(u32(u32(h, uint32(200+len(body))), uint32(len(used))), 16)
	h = u32(u32(h, stateAt), uint32(len(q.State)))
	h = u32(u32(h, unless(4, q.NodeIndex, 0xFFFFFFFF)), unless(4, q.NodeCount, 0))
	h = u32(u32(h, unless(1, q.ConnectionsAgeMS, 0xFFFFFFFF)), unless(2, q.OutcomesWindowMS, 0))
	h = three(three(h, outcomesAt, outcomes), valuesAt, values)
	h = u32(u32(u32(h, uint32(len(podKeys))), servicesAt), uint32(len(serviceKeys)))
	h = u32(three(h, groupsAt, groups), uint32(abi.RoleShare))
	h = u32(three(h, statesAt, states), 0)

	out := append(h, body...)
	text := len(out) + 16*len(used)
	for _, t := range used {
		out = u32(u32(u32(u32(out, s.id(t)), uint32(text)), uint32(len(t))), 0)
		text += len(t)
	}
	out = pad(append(out, strings.Join(used, "")...))
	le.PutUint32(out[8:], uint32(len(out)))
	return out
}

// golden compares a golden file with what it should be, or writes it.
func golden(t *testing.T, name string, want any) {
	t.Helper()
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(want); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(name, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, text.Bytes()) {
		t.Errorf("%s differs from its cases: rewrite it with -update, and review the difference", name)
	}
}

func TestGoldenRequests(t *testing.T) {
	cases := requestCases()
	encoders, seconds := map[string]*abi.Encoder{}, map[string]*second{}
	for i := range cases {
		c := &cases[i]
		c.Request, c.Keys = WithoutNulls(c.Request), append([]string{}, c.Keys...)
		encoder, other := &abi.Encoder{}, &second{}
		if c.After != "" {
			encoder, other = encoders[c.After], seconds[c.After]
		}
		if encoder == nil {
			t.Fatalf("%s: no request %q before it", c.Name, c.After)
		}
		encoders[c.Name], seconds[c.Name] = encoder, other
		c.Wire = other.encode(c.Request, c.Needs, c.Keys, c.Handle)
		if got := encoder.AppendRequest(nil, c.Request, abi.View{Role: abi.RoleShare, Settings: c.Handle, Needs: c.Needs, Keys: c.Keys}); !bytes.Equal(got, c.Wire) {
			t.Errorf("%s: sdk/abi encodes\n%x, the second encoder\n%x", c.Name, got, c.Wire)
		}
		m, err := ReadMessage(c.Wire)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		if diff := Difference(&m.Request, Shown(c.Request, c.Needs, c.Keys)); diff != "" || m.Role != abi.RoleShare || m.Settings != c.Handle || m.Minor != abi.Minor {
			t.Errorf("%s: %s (handle %d, minor version %d)", c.Name, diff, m.Settings, m.Minor)
		}
		if n := len(c.Request.Endpoints); len(c.Wire) > EchoRoom(n) {
			t.Errorf("%s: %d bytes for %d endpoints: the echo has at most %d", c.Name, len(c.Wire), n, EchoRoom(n))
		}
	}
	golden(t, "vectors/requests.json", cases)
	if *update { // what is embedded is older
		return
	}
	read := RequestVectors()
	for i := range min(len(read), len(cases)) { // what another implementation reads is what the cases say
		a, b := *read[i].Request, *cases[i].Request
		if diff := Difference(&a, &b); diff != "" || !slices.Equal(a.Keys, b.Keys) || !bytes.Equal(read[i].Wire, cases[i].Wire) {
			t.Errorf("%s: read back: %s", cases[i].Name, diff)
		}
		text, err := json.Marshal(fixture.Fixture{Request: a})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fixture.Parse(text); err != nil {
			t.Errorf("%s: %v", cases[i].Name, err)
		}
	}
}

// What ReadMessage checks, a host can do wrong.
func TestReadMessageRefuses(t *testing.T) {
	le := binary.LittleEndian
	all := requestCases()
	whole := (&second{}).encode(all[slices.IndexFunc(all, func(v RequestVector) bool { return v.Name == "all inputs" })].Request, allNeeds, nil, 0)
	put := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { le.PutUint32(b[at:], v); return b }
	}
	table := int(le.Uint32(whole[96:]))
	zones := int(le.Uint32(whole[84:]))
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   string
	}{
		{"nothing", func(b []byte) []byte { return nil }, "0 bytes, the header has 200"},
		{"magic", put(0, 1), "magic is 0x1"},
		{"major", put(4, 1|2<<16), `version is 1\.2`},
		{"total", put(8, 9), "total is 9"},
		{"header", put(12, 160), "header_length is 160"},
		{"now", put(16, 1), "now_ms"},
		{"family", put(52, 80|6<<16|5<<24), "family is 5"},
		{"zone index", func(b []byte) []byte { le.PutUint16(b[58:], 1); return b }, `zone_index is 1: want 0, the row of zone "a"`},
		{"zone index of an endpoint", func(b []byte) []byte { le.PutUint16(b[200+72+18:], 0); return b }, `endpoints\[1\]\.zone_index is 0: want 1`},
		{"an address of the other family", put(200+8, 0), `endpoints\[0\]\.address is`},
		{"offset", put(72, 0xFFFFFFF8), "endpoints: 3 × 72 bytes at offset 4294967288"},
		{"alignment", put(72, 172), "offset 172 is not a multiple of 8"},
		{"stride", put(80, 60), `endpoints.stride is 60`},
		{"count of outcomes", put(136, 2), "outcomes.count is 2"},
		{"count of values", func(b []byte) []byte {
			le.PutUint32(b[148:], 2)
			le.PutUint32(b[152:], 8)
			le.PutUint32(b[144:], 200)
			return b
		}, "values.count is 2: want 0 or 3"},
		{"groups", func(b []byte) []byte {
			le.PutUint32(b[168:], 200)
			le.PutUint32(b[172:], 65)
			le.PutUint32(b[176:], 8)
			b = append(b, make([]byte, 65*8)...)
			le.PutUint32(b[8:], uint32(len(b)))
			return b
		}, "groups.count is 65"},
		{"a group", put(200+68, 1), `endpoints\[0\]\.group is 1, there are 0 groups`},
		{"zeros of an endpoint", put(200+68, 1<<16), `endpoints\[0\]\.zero is not 0`},
		{"count of states of endpoints", put(188, 2), "endpoint_states.count is 2"},
		{"role", put(180, 8), "role is 8"},
		{"pod keys", put(156, 17), "pod_keys is 17"},
		{"state", put(112, 1025), "state"},
		{"an id that is not in the table", put(32, 999), "namespace_id: the string table does not have the id 0x3e7"},
		{"an id twice", func(b []byte) []byte { copy(b[table:table+4], b[table+16:]); return b }, "is in the table twice"},
		{"a reserved id", put(table, 0xFFFFFFFE), "reserved"},
		{"an empty string", put(table+8, 0), "the empty string is NO_STRING"},
		{"a text twice", func(b []byte) []byte { copy(b[table+4:table+12], b[table+20:]); return b }, "has the ids"},
		{"a text beyond the end", put(table+4, 0xFFFFFFFF), "beyond the end"},
		{"zeros of a string", put(table+12, 1), "not 0"},
		{"zeros of a zone", put(zones+20, 1), "not 0"},
	} {
		_, err := ReadMessage(c.change(bytes.Clone(whole)))
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestKeysWithoutASectionOfValuesAreAbsent(t *testing.T) {
	wire := (&second{}).encode(requestCases()[0].Request, 0, nil, 0)
	binary.LittleEndian.PutUint32(wire[156:], 2)
	m, err := ReadMessage(wire)
	if err != nil || !slices.Equal(m.Request.Endpoints[2].Values, make([]abi.Value, 2)) {
		t.Errorf("%+v, %v", m, err)
	}
}

func FuzzReadMessage(f *testing.F) {
	for _, v := range RequestVectors() {
		f.Add([]byte(v.Wire))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := ReadMessage(wire)
		if err == nil && len(m.Request.Endpoints)*abi.EndpointSize > len(wire) {
			t.Error("more endpoints than bytes")
		}
	})
}

// reply is a response in the making.
type reply struct {
	header, stride   int
	results          [][4]uint32 // value, flags and shed, reset, reason and group
	reasons          []string
	state            string
	groups           []uint32
	requeue, balance uint32
	states           string // of endpoints; a header of version 2.0, of 56 bytes, has none
	counters         [4]uint32
}

func (r reply) encode() []byte {
	le := binary.LittleEndian
	if r.header == 0 {
		r.header, r.stride = 56, 16
	}
	fill := func(b []byte, n int) []byte { // what a later minor version appends
		for len(b) < n {
			b = append(b, 0xA5)
		}
		return b
	}
	body := []byte{}
	for _, x := range r.results {
		var b []byte
		for _, v := range x {
			b = le.AppendUint32(b, v)
		}
		body = append(body, fill(b, r.stride)...)
	}
	statesAt := r.header + len(body)
	body = append(body, r.states...)
	table := r.header + len(body)
	at := table + 8*len(r.reasons)
	for _, t := range r.reasons {
		body = le.AppendUint32(le.AppendUint32(body, uint32(at)), uint32(len(t)))
		at += len(t)
	}
	body = append(append(body, strings.Join(r.reasons, "")...), r.state...)
	groups := r.header + len(body)
	for _, part := range r.groups {
		body = le.AppendUint32(le.AppendUint32(body, part), 0)
	}
	h := []byte("SLRP")
	for _, v := range []int{r.header + len(body), r.header, r.header, len(r.results), r.stride, int(r.requeue), int(r.balance), at, len(r.state), table, len(r.reasons), groups, len(r.groups)} {
		h = le.AppendUint32(h, uint32(v))
	}
	if r.header >= 64 {
		h = le.AppendUint32(le.AppendUint32(h, uint32(statesAt)), uint32(len(r.states)/32))
	}
	if r.header >= 80 {
		for _, n := range r.counters {
			h = le.AppendUint32(h, n)
		}
	}
	return append(fill(h, r.header), body...)
}

const (
	never    = 0xFFFFFFFF
	noReason = 0xFFFF
)

// responseCases states the golden responses. Those that are refused change one thing of a good one.
func responseCases() (out []ResponseVector) {
	three := []uint32{ready, ready, leaving}
	good := reply{
		results: [][4]uint32{{3, 0, never, 0}, {0, 1 | 250<<16, 5000, 1 | 1<<16}, {7, 0, never, noReason | 1<<16}},
		reasons: []string{"same zone", "draining: 50 %, zürich ✓"}, state: "kept", requeue: 7000, balance: 1, groups: []uint32{95, 5},
	}
	want := &Response{RequeueMS: 7000, Balance: 1, Groups: []uint32{95, 5}, State: []byte("kept"), Results: []Result{
		{Value: 3, ResetAfterMS: never, Reason: "same zone"},
		{Group: 1, KeepDraining: true, ShedPermille: 250, ResetAfterMS: 5000, Reason: "draining: 50 %, zürich ✓"},
		{Value: 7, Group: 1, ResetAfterMS: never},
	}}
	read := func(name, text string, conditions []uint32, wire []byte, want *Response) {
		if want.State == nil {
			want.State = []byte{}
		}
		if want.Groups == nil {
			want.Groups = []uint32{}
		}
		if want.Results == nil {
			want.Results = []Result{}
		}
		out = append(out, ResponseVector{Name: name, Text: text, Conditions: conditions, Wire: wire, Want: want})
	}
	read("all fields", "shares, groups, drain, shed, reset, reasons, state, algorithm, requeue", three, good.encode(), want)
	states := good
	states.header, states.stride, states.counters, states.states = 80, 16, [4]uint32{1, 0, never, 3}, strings.Repeat("abcdefg\x00", 4)+strings.Repeat("\x00", 32)+strings.Repeat("\xff", 32)
	with := *want
	with.EndpointStates, with.Counters = []byte(states.states), states.counters
	read("states of endpoints, counters", "a header of version 2.1; the state of the second is 0", three, states.encode(), &with)
	read("a later minor version", "a header of 96 bytes and records of 40: what is appended is skipped", three, func() []byte {
		later := good
		later.header, later.stride = 96, 40
		return later.encode()
	}(), want)
	read("nothing but shares", "no reasons, no state, no groups, no requeue; the group of a result means nothing", []uint32{ready},
		reply{results: [][4]uint32{{1, 0, never, noReason | 7<<16}}}.encode(), &Response{Results: []Result{{Value: 1, ResetAfterMS: never}}})
	read("no endpoints", "a header only", []uint32{}, reply{}.encode(), &Response{})
	read("empty sections anywhere", "the offset of an empty section means nothing", []uint32{ready}, func() []byte {
		b := reply{results: [][4]uint32{{1, 0, never, noReason}}}.encode()
		binary.LittleEndian.PutUint32(b[32:], 0xFFFFFFFF)
		binary.LittleEndian.PutUint32(b[40:], 0xFFFFFFFF)
		binary.LittleEndian.PutUint32(b[48:], 0xFFFFFFFF)
		return b
	}(), &Response{Results: []Result{{Value: 1, ResetAfterMS: never}}})
	read("out of range", "a part above 1000 counts as 1000; bits of flags that are not defined are ignored", []uint32{ready, ready},
		reply{results: [][4]uint32{{1, 0xFFFFFFFE, 0, noReason}, {2, 1001<<16 | 1, 1, noReason}}, requeue: never}.encode(),
		&Response{RequeueMS: never, Results: []Result{{Value: 1, ShedPermille: 1000}, {Value: 2, KeepDraining: true, ShedPermille: 1000, ResetAfterMS: 1}}})
	read("the largest within range", "shares, parts and groups have all of their bits", []uint32{ready}, reply{results: [][4]uint32{{never, 1000 << 16, 0xFFFFFFFE, noReason | 63<<16}}, balance: 4,
		groups: slices.Repeat([]uint32{never}, 64)}.encode(),
		&Response{Balance: 4, Groups: slices.Repeat([]uint32{never}, 64), Results: []Result{{Value: never, Group: 63, ShedPermille: 1000, ResetAfterMS: 0xFFFFFFFE}}})
	read("a share for one that is not eligible", "it is a share of no capacity", []uint32{unready, ready, 1 + 2}, reply{results: [][4]uint32{{9, 0, never, noReason}, {1, 0, never, noReason}, {9, 0, never, noReason}}}.encode(),
		&Response{Results: []Result{{Value: 9, ResetAfterMS: never}, {Value: 1, ResetAfterMS: never}, {Value: 9, ResetAfterMS: never}}})
	read("no share where the default rules choose none", "nothing is eligible", []uint32{unready, unready}, reply{results: [][4]uint32{{0, 0, never, noReason}, {0, 0, never, noReason}}}.encode(),
		&Response{Results: []Result{{ResetAfterMS: never}, {ResetAfterMS: never}}})
	long := strings.Repeat("x", 256)
	read("the longest response", "1024 bytes of state, and reasons of 4096 bytes together", []uint32{ready}, reply{
		results: [][4]uint32{{1, 0, never, 15}}, reasons: slices.Repeat([]string{long}, 16), state: strings.Repeat("s", 1024)}.encode(),
		&Response{State: []byte(strings.Repeat("s", 1024)), Results: []Result{{Value: 1, ResetAfterMS: never, Reason: long}}})
	read("256 reasons", "some empty, and the last one in use", []uint32{ready}, reply{
		results: [][4]uint32{{1, 0, never, 255}}, reasons: append(slices.Repeat([]string{""}, 255), "last")}.encode(),
		&Response{Results: []Result{{Value: 1, ResetAfterMS: never, Reason: "last"}}})
	read("sections in another order", "state, reasons and results, with gaps and overlaps", []uint32{ready}, func() []byte {
		b := binary.LittleEndian.AppendUint32([]byte("SLRP"), 56+88)
		for _, v := range []uint32{56, 128, 1, 16, 0, 0, 57, 3, 72, 1, 64, 2} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		b = append(b, "abcdefgh"...)       // 56
		for _, v := range []uint32{1, 0} { // 64: a group
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 58), 2) // 72: the reason "cd", and a group
		b = append(b, make([]byte, 48)...)                                               // 80
		for _, v := range []uint32{5, 0, never, 1 << 16} {                               // 128
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return b
	}(), &Response{Groups: []uint32{1, 58}, State: []byte("bcd"), Results: []Result{{Value: 5, Group: 1, ResetAfterMS: never, Reason: "cd"}}})

	refuse := func(rule, name string, conditions []uint32, wire []byte) {
		out = append(out, ResponseVector{Name: name, Text: Rules()[rule], Conditions: conditions, Wire: wire, Refused: rule})
	}
	changed := func(rule, name string, at int, v uint32) {
		b := good.encode()
		binary.LittleEndian.PutUint32(b[at:], v)
		refuse(rule, name, three, b)
	}
	whole := good.encode()
	reasons := 56 + 3*16
	texts := reasons + 2*8
	refuse("short", "no bytes", three, []byte{})
	refuse("short", "cut off in the header", three, whole[:55])
	refuse("total", "cut off", three, whole[:len(whole)-1])
	refuse("total", "longer than its total", three, append(slices.Clone(whole), 0))
	changed("magic", "another magic", 0, 0x51524C53)
	changed("total", "a total of 4 GiB", 4, never)
	changed("header-length", "a header of 48 bytes", 8, 48)
	changed("header-length", "a header of 60 bytes", 8, 60)
	changed("header-length", "a header that is longer than the response", 8, 1<<20)
	changed("count", "fewer results than endpoints", 16, 2)
	changed("count", "2^32 - 1 results", 16, never)
	refuse("count", "more results than endpoints", []uint32{ready, ready}, whole)
	changed("stride", "a stride of 0", 20, 0)
	changed("stride", "a stride of 8", 20, 8)
	changed("stride", "a stride of 20", 20, 20)
	changed("section", "a stride of 4 GiB", 20, 0xFFFFFFF8)
	changed("section", "results in the header", 12, 8)
	changed("section", "results that end beyond the response", 12, uint32(len(whole)-40))
	changed("section", "results at 4 GiB", 12, never)
	changed("section", "a state at 4 GiB", 32, never)
	changed("section", "a state in the header", 32, 0)
	changed("section", "reasons at 4 GiB", 40, never)
	changed("section", "reasons in the header", 40, 40)
	changed("section", "a reason at 4 GiB", reasons+8, never)
	changed("section", "a reason in the header", reasons, 52)
	changed("section", "groups at 4 GiB", 48, never)
	changed("section", "groups in the header", 48, 40)
	changed("section", "groups that end beyond the response", 48, uint32(len(whole)-8))
	changed("group", "65 groups", 52, 65)
	changed("group", "2^32 - 1 groups", 52, never)
	changed("group", "group 2 of 2", 56+12, 2<<16)
	changed("group", "group 65535", 56+16+12, 1|0xFFFF<<16)
	badStates := func(name string, at int, v uint32) {
		b := states.encode()
		binary.LittleEndian.PutUint32(b[at:], v)
		refuse("section", name, three, b)
	}
	badStates("fewer states than endpoints", 60, 2)
	badStates("2^32 - 1 states of endpoints", 60, never)
	badStates("states of endpoints at 4 GiB", 56, never)
	badStates("states of endpoints in the header", 56, 16)
	changed("balance", "algorithm 5", 28, 5)
	changed("balance", "algorithm 256", 28, 256)
	refuse("state", "a state of 1025 bytes", three, func() []byte { b := good; b.state = strings.Repeat("s", 1025); return b.encode() }())
	refuse("reasons", "257 reasons", three, func() []byte { b := good; b.reasons = slices.Repeat([]string{"r"}, 257); return b.encode() }())
	refuse("reasons", "a reason of 257 bytes", three, func() []byte { b := good; b.reasons = []string{"a", long + "y"}; return b.encode() }())
	refuse("reasons", "reasons of 4097 bytes", three, func() []byte {
		b := good
		b.reasons = append(slices.Repeat([]string{long}, 16), "y")
		return b.encode()
	}())
	changed("reason", "reason 2 of 2", 56+12, 2)
	changed("reason", "reason 65534", 56+12, 0xFFFE)
	changed("printable", "a reason that is not UTF-8", texts, 0x20FF2020)
	changed("printable", "a reason with a line feed", texts, 0x200A2020)
	changed("printable", "a reason with an escape sequence", texts, 0x41315B1B)
	refuse("printable", "a reason with a half character", three, func() []byte { b := good; b.reasons = []string{"a", "z\xc3"}; return b.encode() }())
	refuse("printable", "a reason with an override of its direction", three, func() []byte { b := good; b.reasons = []string{"a", "b\u202e"}; return b.encode() }())
	none := good
	none.results = [][4]uint32{{0, 0, never, 0}, {0, 0, never, 1}, {0, 0, never, noReason}}
	refuse("nothing", "no share", three, none.encode())
	none.results = [][4]uint32{{0, 0, never, 0}, {0, 0, never, 1}, {5, 0, never, noReason}}
	refuse("nothing", "a share only for one that is not eligible", []uint32{ready, ready, unready}, none.encode())
	refuse("nothing", "a share only for one without capacity", three, none.encode())
	return out
}

// decode is a second decoder, written from ABI.md: it returns the rule by which a response is refused.
func decode(b []byte, conditions []uint32) (*Response, string) {
	if len(b) < 56 {
		return nil, "short"
	}
	field := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(b[4*i:])) }
	total, header, count, stride := field(1), field(2), field(4), field(5)
	switch {
	case string(b[:4]) != "SLRP":
		return nil, "magic"
	case total != uint64(len(b)):
		return nil, "total"
	case header < 56 || header%8 != 0 || header > total:
		return nil, "header-length"
	case count != uint64(len(conditions)):
		return nil, "count"
	case stride < 16 || stride%8 != 0:
		return nil, "stride"
	case field(7) > 4:
		return nil, "balance"
	case field(9) > 1024:
		return nil, "state"
	case field(11) > 256:
		return nil, "reasons"
	case field(13) > 64:
		return nil, "group"
	}
	within := func(offset, n uint64) bool { return n == 0 || offset >= header && offset+n <= total }
	states, given := uint64(0), uint64(0)
	if header >= 64 {
		states, given = field(14), field(15)
	}
	if given != 0 && given != count || !within(states, given*32) || !within(field(3), count*stride) || !within(field(8), field(9)) || !within(field(10), field(11)*8) || !within(field(12), field(13)*8) {
		return nil, "section"
	}
	u32 := func(at uint64) uint64 { return uint64(binary.LittleEndian.Uint32(b[at:])) }
	var reasons []string
	sum := uint64(0)
	for i := range field(11) {
		at, n := u32(field(10)+8*i), u32(field(10)+8*i+4)
		sum += n
		switch {
		case n > 256 || sum > 4096:
			return nil, "reasons"
		case !within(at, n):
			return nil, "section"
		}
		text := ""
		if n > 0 {
			text = string(b[at : at+n])
		}
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, "printable"
		}
		reasons = append(reasons, text)
	}
	out := &Response{RequeueMS: uint32(field(6)), Balance: uint8(field(7)), Groups: []uint32{}, State: []byte{}, Results: []Result{}}
	for i := range field(13) {
		out.Groups = append(out.Groups, uint32(u32(field(12)+8*i)))
	}
	if header >= 80 {
		out.Counters = [4]uint32{uint32(field(16)), uint32(field(17)), uint32(field(18)), uint32(field(19))}
	}
	if given > 0 {
		out.EndpointStates = b[states:][:given*32]
	}
	if field(9) > 0 {
		out.State = b[field(8):][:field(9)]
	}
	chosen, left := false, false
	for i, c := range conditions {
		at := field(3) + uint64(i)*stride
		x := Result{Value: uint32(u32(at)), KeepDraining: b[at+4]&1 != 0, ShedPermille: uint16(min(u32(at+4)>>16, 1000)), ResetAfterMS: uint32(u32(at + 8))}
		if group := uint16(u32(at+12) >> 16); len(out.Groups) > 0 {
			if x.Group = group; int(group) >= len(out.Groups) {
				return nil, "group"
			}
		}
		if reason := u32(at+12) & 0xFFFF; reason != noReason {
			if reason >= uint64(len(reasons)) {
				return nil, "reason"
			}
			x.Reason = reasons[reason]
		}
		chosen, left = chosen || c&16 != 0, left || x.Value > 0 && c&16 != 0 && c&128 != 0 // the capacity is that of the default rules
		out.Results = append(out.Results, x)
	}
	if chosen && !left {
		return nil, "nothing"
	}
	return out, ""
}

func TestGoldenResponses(t *testing.T) {
	cases := responseCases()
	used := map[string]bool{}
	for i := range cases {
		c := &cases[i]
		used[c.Refused] = true
		got, rule := decode(c.Wire, c.Conditions)
		if rule != c.Refused || c.Refused == "" && !reflect.DeepEqual(got, c.Want) {
			t.Errorf("%s: the second decoder reads %+v (refused: %q)\nwant %+v (refused: %q)", c.Name, got, rule, c.Want, c.Refused)
		}
		if len(c.Wire) > abi.MaxResponse(len(c.Conditions)) && c.Refused == "" {
			t.Errorf("%s: %d bytes do not fit", c.Name, len(c.Wire))
		}
		// sdk/abi knows no conditions: what is left is up to its caller.
		var d abi.Decoder
		var resp abi.Response
		err := d.DecodeResponse(c.Wire, len(c.Conditions), &resp)
		if (err != nil) != (c.Refused != "" && c.Refused != "nothing") {
			t.Errorf("%s: sdk/abi: %v", c.Name, err)
		}
		if c.Want != nil {
			got := ResponseOf(&resp)
			if !reflect.DeepEqual(got, c.Want) {
				t.Errorf("%s: sdk/abi reads %+v\nwant %+v", c.Name, got, c.Want)
			}
		}
	}
	for rule := range Rules() {
		if !used[rule] {
			t.Errorf("no response is refused by the rule %q", rule)
		}
	}
	golden(t, "vectors/responses.json", cases)
	if read := ResponseVectors(); !*update && !reflect.DeepEqual(read, cases) {
		t.Error("read back, the golden responses differ")
	}
}

// TestReadmeHasEveryName compares the README of the kit with fields, rules, guests, inputs and comments of modules.
func TestReadmeHasEveryName(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, record := range []any{RequestVector{}, ResponseVector{}, Command{}, Answer{}, Response{}, Result{}} {
		of := reflect.TypeOf(record)
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	for rule := range Rules() {
		names = append(names, rule)
	}
	for _, in := range inputs {
		names = append(names, in.name)
	}
	guests, err := modules.ReadDir("guests")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range guests {
		if name := strings.TrimSuffix(g.Name(), ".wat"); name != "base" {
			names = append(names, name)
		}
	}
	for _, name := range append(names, OpHello, OpLoad, OpDecide, OpEnforce, OpUnload) {
		if !bytes.Contains(readme, []byte("`"+name+"`")) && !bytes.Contains(readme, []byte(`"`+name+`":`)) {
			t.Errorf("README.md does not have %q", name)
		}
	}
}
