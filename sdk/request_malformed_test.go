package sdk

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestMalformedRequestsAreRefusedByField(t *testing.T) {
	for name, tt := range map[string]struct {
		at   int
		v    uint32
		want string
	}{
		"magic":           {abi.ReqMagic, 1, "magic"},
		"version":         {abi.ReqMajor, 3, "ABI version is 3.0, not 2"},
		"total":           {abi.ReqTotal, 8, "total length"},
		"header short":    {abi.ReqHeaderLength, 8, "header length"},
		"header long":     {abi.ReqHeaderLength, math.MaxUint32, "header length"},
		"endpoints":       {abi.ReqEndpointsCount, math.MaxUint32, "endpoints: 4294967295 records"},
		"endpoint offset": {abi.ReqEndpointsOffset, math.MaxUint32 - 7, "endpoints"},
		"endpoint odd":    {abi.ReqEndpointsOffset, abi.ReqSize + 1, "endpoints"},
		"endpoint stride": {abi.ReqEndpointsStride, 56, "endpoints: stride is 56"},
		"zones":           {abi.ReqZonesCount, 1000, "zones"},
		"strings":         {abi.ReqStringsCount, 1000, "strings"},
		"state offset":    {abi.ReqStateOffset, math.MaxUint32, "state"},
		"state length":    {abi.ReqStateLength, math.MaxUint32, "state"},

		"fewer outcomes":            {abi.ReqOutcomesCount, 2, "outcomes: 2 records for 3 endpoints"},
		"too many outcomes":         {abi.ReqOutcomesCount, math.MaxUint32, "outcomes: 4294967295 records"},
		"outcomes in the header":    {abi.ReqOutcomesOffset, 8, "outcomes"},
		"outcomes beyond the end":   {abi.ReqOutcomesOffset, math.MaxUint32 - 7, "outcomes"},
		"outcomes unaligned":        {abi.ReqOutcomesOffset, abi.ReqSize + 4, "outcomes"},
		"outcomes stride":           {abi.ReqOutcomesStride, 48, "outcomes: stride is 48"},
		"outcomes stride huge":      {abi.ReqOutcomesStride, math.MaxUint32 - 7, "outcomes"},
		"fewer values":              {abi.ReqValuesCount, 2, "values: 2 records for 3 endpoints"},
		"too many values":           {abi.ReqValuesCount, math.MaxUint32, "values: 4294967295 records"},
		"values in the header":      {abi.ReqValuesOffset, 8, "values"},
		"values beyond the end":     {abi.ReqValuesOffset, math.MaxUint32 - 7, "values"},
		"values unaligned":          {abi.ReqValuesOffset, abi.ReqSize + 4, "values"},
		"values stride zero":        {abi.ReqValuesStride, 0, "values: stride is 0"},
		"values stride too short":   {abi.ReqValuesStride, 8, "values: 4 values of 4 bytes are more than the stride of 8"},
		"values stride huge":        {abi.ReqValuesStride, math.MaxUint32 - 7, "values"},
		"too many Pod keys":         {abi.ReqPodKeys, math.MaxUint32, "values: 4294967295 values of 4 bytes"},
		"Service values":            {abi.ReqServiceValuesCount, math.MaxUint32, "Service values: 4294967295 values"},
		"Service values beyond":     {abi.ReqServiceValuesOffset, math.MaxUint32 - 7, "Service values"},
		"Service values in header":  {abi.ReqServiceValuesOffset, 0, "Service values"},
		"Service values, unaligned": {abi.ReqServiceValuesOffset, abi.ReqSize + 2, "Service values"},
	} {
		t.Run(name, func(t *testing.T) {
			var e abi.Encoder
			req := random(rand.New(rand.NewPCG(1, 5)))
			req.State, req.OutcomesWindowMS, req.Endpoints = []byte("s"), 1000, make([]abi.Endpoint, 3)
			b := e.AppendRequest(nil, req, abi.View{Needs: abi.AllNeeds, Keys: someKeys})
			binary.LittleEndian.PutUint32(b[tt.at:], tt.v)
			var view Request
			if err := viewOf(&view, b); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestFastPathChecksEveryHeaderBit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 7))
	for range 20 {
		var e abi.Encoder
		req := random(rnd)
		b := e.AppendRequest(nil, req, all(req))
		for bit := range abi.ReqSize * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			if n := binary.LittleEndian.Uint32(b[abi.ReqEndpointsCount:]); n < 1000 {
				var view Request
				if err := viewOf(&view, b); err != nil && strings.Contains(err.Error(), "fast path: ") {
					t.Fatalf("byte %d, bit %d: %v", bit/8, bit%8, err)
				}
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestNewerMinorVersionIsRead(t *testing.T) {
	// Each header and record is 8 bytes longer, as in a later minor version.
	var e abi.Encoder
	want := random(rand.New(rand.NewPCG(2, 2)))
	want.OutcomesWindowMS = 1000
	b := e.AppendRequest(nil, want, all(want))
	le := binary.LittleEndian
	grown := slices.Concat(b[:abi.ReqSize], make([]byte, 8))
	le.PutUint32(grown[abi.ReqHeaderLength:], abi.ReqSize+8)
	for _, at := range []int{
		abi.ReqEndpointsOffset, abi.ReqZonesOffset, abi.ReqStringsOffset, abi.ReqOutcomesOffset, abi.ReqValuesOffset,
	} {
		offset, count, stride := le.Uint32(b[at:]), le.Uint32(b[at+4:]), le.Uint32(b[at+8:])
		le.PutUint32(grown[at:], uint32(len(grown)))
		le.PutUint32(grown[at+8:], stride+8)
		for i := range count {
			grown = append(append(grown, b[offset+i*stride:][:stride]...), 1, 2, 3, 4, 5, 6, 7, 8)
		}
	}
	// Texts, Service values and state at the end.
	base := uint32(len(grown))
	grown = append(grown, b...)
	le.PutUint32(grown[abi.ReqServiceValuesOffset:], base+le.Uint32(b[abi.ReqServiceValuesOffset:]))
	le.PutUint32(grown[abi.ReqStateOffset:], base+le.Uint32(b[abi.ReqStateOffset:]))
	strs, n := le.Uint32(grown[abi.ReqStringsOffset:]), le.Uint32(grown[abi.ReqStringsCount:])
	for i := range n {
		r := grown[strs+i*(abi.StringSize+8):]
		le.PutUint32(r[abi.StringOffset:], base+le.Uint32(r[abi.StringOffset:]))
	}
	le.PutUint32(grown[abi.ReqTotal:], uint32(len(grown)))
	le.PutUint16(grown[abi.ReqMinor:], abi.Minor+1)
	var view Request
	if err := viewOf(&view, grown); err != nil {
		t.Fatal(err)
	}
	if got := read(&view, want.Keys); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Fatalf("\ngot  %+v\nwant %+v", got, want)
	}
}

// readAll reads everything.
type readAll struct{}

func FuzzRequest(f *testing.F) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 5 {
		var e abi.Encoder
		req := random(rnd)
		f.Add(e.AppendRequest(nil, req, all(req)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := instance{plugin: readAll{}}
		resp := make([]byte, abi.MaxResponse(1000))
		if len(b) >= abi.ReqSize && binary.LittleEndian.Uint32(b[abi.ReqEndpointsCount:]) <= uint32(len(b)) {
			var view Request
			if err := viewOf(&view, b); err != nil && strings.Contains(err.Error(), "fast path: ") {
				t.Error(err)
			}
		}
		// No panic for any b, and well-formed responses.
		n, err := in.decideBytes(b, resp)
		if err != nil {
			if n >= 0 {
				t.Errorf("error %v with code %d", err, n)
			}
			return
		}
		var d abi.Decoder
		var out abi.Response
		if err := d.DecodeResponse(resp[:n], in.req.NumEndpoints(), &out); err != nil {
			t.Error(err)
		}
	})
}
