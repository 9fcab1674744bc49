package sdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// someKeys are keys of all kinds.
var someKeys = []string{"label:a", "annotation:a", abi.KeyPodCPU, "service-label:a", "service-annotation:a", "label:b", "service-label:b"}

// plainView is the view of a plugin that needs nothing.
var plainView = abi.View{Settings: abi.NoSettings}

// all returns the view of a plugin that sees everything.
func all(req *abi.Request) abi.View {
	return abi.View{Settings: abi.NoSettings, Needs: abi.AllNeeds, Keys: req.Keys}
}

// random returns a request with random content.
func random(rnd *rand.Rand) *abi.Request {
	word := func() string {
		return []string{"", "a", "zone-a", "zone-b", "ip-10-0-0-1.internal", "ip-10-0-0-2.internal", "zürich", "x\x00y"}[rnd.IntN(8)]
	}
	req := &abi.Request{
		Now: rnd.Int64N(1<<40) * 1000, Namespace: word(), Service: word(), Port: word(), PortNumber: uint16(rnd.Uint32()),
		Protocol: uint8(rnd.Uint32()), Family: 4, Pool: uint8(rnd.IntN(2)), InternalPolicyLocal: rnd.IntN(2) == 0,
		ExternalPolicyLocal: rnd.IntN(2) == 0, SessionAffinityMS: rnd.Int64N(1 << 40), Node: word(), Zone: word(), Generation: rnd.Uint64(),
	}
	for range rnd.IntN(20) {
		req.State = append(req.State, byte(rnd.Uint32()))
	}
	for _, name := range []string{"", "a", "zone-a", "zone-b", "zürich"} {
		if rnd.IntN(3) > 0 {
			req.Zones = append(req.Zones, abi.Zone{
				Name: name, Nodes: rnd.Uint32(), Ready: rnd.Uint32(), Serving: rnd.Uint32(), Total: rnd.Uint32(), MilliCPU: rnd.Uint64(),
			})
		}
	}
	req.NodeIndex, req.ConnectionsAgeMS = abi.NoIndex, abi.NoAge
	if rnd.IntN(2) == 0 {
		req.NodeIndex, req.NodeCount, req.ConnectionsAgeMS = rnd.Uint32N(9), 1+rnd.Uint32N(9), rnd.Uint32N(9999)
	}
	if rnd.IntN(2) == 0 {
		req.OutcomesWindowMS = 1 + rnd.Uint32N(9999)
	}
	value := func() abi.Value {
		if rnd.IntN(3) == 0 {
			return abi.Value{}
		}
		return abi.Value{Text: word(), Present: true}
	}
	podKeys := 0
	for _, i := range rnd.Perm(len(someKeys))[:rnd.IntN(len(someKeys)+1)] {
		req.Keys = append(req.Keys, someKeys[i])
		if abi.IsEndpointKey(someKeys[i]) {
			podKeys++
		} else {
			req.ServiceValues = append(req.ServiceValues, value())
		}
	}
	for range rnd.IntN(30) {
		a := netip.AddrFrom4([4]byte{10, 0, byte(rnd.Uint32()), byte(rnd.Uint32())})
		if rnd.IntN(2) == 0 {
			a = netip.AddrFrom16([16]byte{0x20, 1, 15: byte(rnd.Uint32())})
		}
		e := abi.Endpoint{
			Addr: netip.AddrPortFrom(a, uint16(rnd.Uint32())), Conditions: rnd.Uint32() & 511, Node: word(), Zone: word(), Pod: word(),
			Capacity: rnd.Uint32(), Share: rnd.Uint32(), PriorWeight: rnd.Int32N(100) - 1, ReadySince: rnd.Int64(), TerminatingSince: rnd.Int64(),
			Connections: rnd.Uint32(),
		}
		for range podKeys {
			e.Values = append(e.Values, value())
		}
		if req.OutcomesWindowMS != 0 {
			e.Outcomes = abi.Outcomes{
				Attempts: rnd.Uint32(), Answered: rnd.Uint32(), Refused: rnd.Uint32(), Unanswered: rnd.Uint32(), TotalAttempts: rnd.Uint64(),
				TotalAnswered: rnd.Uint64(), TotalRefused: rnd.Uint64(), TotalUnanswered: rnd.Uint64(), Since: rnd.Int64(),
			}
		}
		if rnd.IntN(3) == 0 {
			e.Connections = abi.ConnectionsUnknown
		}
		req.Endpoints = append(req.Endpoints, e)
	}
	return req
}

// read converts a view to an abi.Request, using its accessors only. The wire form does not have the keys.
func read(r *Request, keys []string) *abi.Request {
	req := &abi.Request{
		Now: int64(r.Now()), Namespace: r.Text(r.Namespace()), Service: r.Text(r.Service()), Port: r.Text(r.Port()),
		PortNumber: r.PortNumber(), Protocol: r.Protocol(), Family: r.Family(), Pool: uint8(r.Pool()),
		InternalPolicyLocal: r.InternalPolicyLocal(), ExternalPolicyLocal: r.ExternalPolicyLocal(), SessionAffinityMS: r.SessionAffinityTimeout().Milliseconds(),
		Node: r.Text(r.Node()), Zone: r.Text(r.NodeZone()), Generation: r.Generation(), State: bytes.Clone(r.State()),
		NodeIndex: abi.NoIndex, ConnectionsAgeMS: abi.NoAge, OutcomesWindowMS: uint32(r.OutcomesWindow().Milliseconds()), Keys: keys,
	}
	if i, n, known := r.NodeIndex(); known {
		req.NodeIndex, req.NodeCount = uint32(i), uint32(n)
	}
	if age, counted := r.ConnectionsAge(); counted {
		req.ConnectionsAgeMS = uint32(age.Milliseconds())
	}
	value := func(id StringID, present bool) abi.Value { return abi.Value{Text: r.Text(id), Present: present} }
	for i := range min(u32(r.base, abi.ReqServiceValuesCount), 1000) {
		req.ServiceValues = append(req.ServiceValues, value(r.ServiceValue(int(i))))
	}
	for i := range r.NumZones() {
		z := r.Zone(i)
		req.Zones = append(req.Zones, abi.Zone{
			Name: r.Text(z.Name), Nodes: z.Nodes, Ready: z.Ready, Serving: z.Serving, Total: z.Total, MilliCPU: z.MilliCPU,
		})
	}
	for i := range r.NumEndpoints() {
		e := r.Endpoint(i)
		prior, connections := int32(abi.NoWeight), uint32(abi.ConnectionsUnknown)
		if w, known := e.PriorWeight(); known {
			prior = int32(w)
		}
		if n, counted := e.Connections(); counted {
			connections = uint32(n)
		}
		var values []abi.Value
		for k := range min(u32(r.base, abi.ReqPodKeys), 100) {
			values = append(values, value(r.PodValue(i, int(k))))
		}
		now := r.Outcomes(i)
		total, since := r.TotalOutcomes(i)
		req.Endpoints = append(req.Endpoints, abi.Endpoint{
			Addr: netip.AddrPortFrom(netip.AddrFrom16(e.Addr().As16()).Unmap(), e.Addr().Port()), Pod: r.Text(e.Pod()), Values: values,
			Outcomes: abi.Outcomes{
				Attempts: uint32(now.Attempts), Answered: uint32(now.Answered), Refused: uint32(now.Refused), Unanswered: uint32(now.Unanswered),
				TotalAttempts: total.Attempts, TotalAnswered: total.Answered, TotalRefused: total.Refused, TotalUnanswered: total.Unanswered,
				Since: int64(since),
			},
			Conditions: uint32(e.Conditions()), Node: r.Text(e.Node()), Zone: r.Text(e.Zone()),
			Capacity: uint32(e.Capacity()), Share: uint32(e.Share()), Group: uint16(e.Group()), PriorWeight: prior, ReadySince: int64(e.ReadySince()),
			TerminatingSince: int64(e.TerminatingSince()), Connections: connections,
		})
	}
	return req
}

// viewOf makes r a view of b by the slow path, and checks that the fast path of an instance has the same result.
func viewOf(r *Request, b []byte) error {
	err := errors.New("shorter than a header")
	if len(b) >= abi.ReqSize {
		err = r.view(unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)))
	}
	var quick *Request
	in := instance{plugin: decideFunc(func(req *Request, _ *Response) error { quick = req; return nil })}
	if len(b) >= abi.ReqSize { // the slow path does not look at the handle
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[abi.ReqSettings:], abi.NoSettings)
	}
	_, quickErr := in.decideBytes(b, make([]byte, abi.MaxResponse(len(b)/abi.EndpointSize)))
	switch {
	case (err == nil) != (quickErr == nil):
		return fmt.Errorf("slow path: %w, fast path: %w", err, quickErr)
	case err != nil:
		return err
	}
	if got, want := read(quick, nil), read(r, nil); fmt.Sprint(got) != fmt.Sprint(want) || quick.badText != r.badText {
		return fmt.Errorf("fast path: %v, slow path: %v", got, want)
	}
	return nil
}

func TestRequestRoundTrip(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var e abi.Encoder
	var view Request // for the life of an instance
	var buf []byte
	for round := range 2000 {
		want := random(rnd)
		buf = e.AppendRequest(buf[:0], want, all(want))
		if err := viewOf(&view, buf); err != nil {
			t.Fatal(err)
		}
		if got := read(&view, want.Keys); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) || view.badText {
			t.Fatalf("round %d:\ngot  %+v\nwant %+v", round, got, want)
		}
		if len(buf)%8 != 0 {
			t.Fatalf("%d bytes: not a multiple of 8", len(buf))
		}
		for i := range view.NumEndpoints() {
			ep := view.Endpoint(i)
			c := want.Endpoints[i].Conditions
			if ep.Ready() != (c&1 != 0) || ep.Serving() != (c&2 != 0) || ep.Terminating() != (c&4 != 0) ||
				ep.Local() != (c&8 != 0) || ep.Chosen() != (c&16 != 0) || ep.Conditions().Has(HintedZone) != (c&32 != 0) ||
				ep.Conditions().Has(HintedNode) != (c&64 != 0) || ep.Eligible() != (c&128 != 0) || ep.Held() != (c&256 != 0) {
				t.Fatalf("conditions %b are read wrongly", c)
			}
			row := slices.IndexFunc(want.Zones, func(z abi.Zone) bool { return z.Name != "" && z.Name == want.Endpoints[i].Zone })
			if ep.ZoneIndex() != row {
				t.Fatalf("zone %q has row %d, read %d", want.Endpoints[i].Zone, row, ep.ZoneIndex())
			}
		}
		row := slices.IndexFunc(want.Zones, func(z abi.Zone) bool { return z.Name != "" && z.Name == want.Zone })
		if view.NodeZoneIndex() != row {
			t.Fatalf("this node's zone %q has row %d, read %d", want.Zone, row, view.NodeZoneIndex())
		}
	}
}

func TestEndpointIndexOutOfRangePanics(t *testing.T) {
	var e abi.Encoder
	var view Request
	if err := viewOf(&view, e.AppendRequest(nil, &abi.Request{Endpoints: make([]abi.Endpoint, 2)}, plainView)); err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{-1, 2, math.MaxInt} {
		panicsWith(t, fmt.Sprintf("sdk: index out of range: endpoint %d of 2", i), func() { view.Endpoint(i) })
	}
	panicsWith(t, "sdk: index out of range: group 1 of 1", func() { view.GroupPart(1) })
	panicsWith(t, "sdk: index out of range: zone 3 of 0", func() { view.Zone(3) })
}

// panicsWith checks the text of the panic of a function.
func panicsWith(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		if got := fmt.Sprint(recover()); got != want {
			t.Errorf("it panics with %q, want %q", got, want)
		}
	}()
	f()
}

func TestTextsOutliveTheirRequest(t *testing.T) {
	var e abi.Encoder
	var view Request
	buf := e.AppendRequest(nil, &abi.Request{Service: "first", Zone: "zone-a"}, plainView)
	if err := viewOf(&view, buf); err != nil {
		t.Fatal(err)
	}
	kept, id := view.Text(view.Service()), view.Service()
	buf = e.AppendRequest(buf[:0], &abi.Request{Service: "second", Zone: "zone-a"}, plainView)
	if err := viewOf(&view, buf); err != nil {
		t.Fatal(err)
	}
	if kept != "first" || view.Text(id) != "first" || view.Text(view.Service()) != "second" || view.Text(NoString) != "" {
		t.Errorf("kept %q, read again %q, new %q", kept, view.Text(id), view.Text(view.Service()))
	}
	if got := view.Text(12345); got != "" {
		t.Errorf("an unknown ID has the text %q", got)
	}
}

func TestTextCacheIsBounded(t *testing.T) {
	var e abi.Encoder
	var view Request
	var buf []byte
	long := strings.Repeat("x", 100_000)
	for i := range 100 {
		name := fmt.Sprint(long, i)
		buf = e.AppendRequest(buf[:0], &abi.Request{Service: name}, plainView)
		if err := viewOf(&view, buf); err != nil {
			t.Fatal(err)
		}
		if view.Text(view.Service()) != name {
			t.Fatal("wrong text")
		}
		if view.textBytes > maxTextBytes+200_000 {
			t.Fatalf("%d bytes of texts are cached", view.textBytes)
		}
	}
}

func (readAll) Configure([]byte) error { return nil }

func (readAll) Decide(req *Request, resp *Response) error {
	read(req, nil)
	for i := range req.NumEndpoints() {
		resp.SetShare(i, resp.Value(i)+1)
		resp.SetReason(i, req.Text(req.Endpoint(i).Zone()))
	}
	resp.SetState(req.State()[:min(len(req.State()), MaxStateLen)])
	return nil
}

func TestTimeSub(t *testing.T) {
	if d := Time(5000).Sub(2000); d != 3*Second {
		t.Error(d)
	}
}
