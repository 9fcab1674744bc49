package abi

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// wire builds a response: header, results, reasons, texts, state.
func wire(results []Result, reasons []string, state string, requeueMS uint32, balance uint32) []byte {
	le := binary.LittleEndian
	table := RespSize + len(results)*ResultSize
	b := make([]byte, table+len(reasons)*ReasonSize)
	for i, a := range results {
		r := b[RespSize+i*ResultSize:]
		le.PutUint32(r[ResultValue:], a.Value)
		le.PutUint16(r[ResultFlags:], uint16(a.Flags))
		le.PutUint16(r[ResultShed:], a.ShedPermille)
		le.PutUint32(r[ResultResetAfter:], a.ResetAfterMS)
		le.PutUint16(r[ResultReason:], NoReasonIndex)
		le.PutUint16(r[ResultGroup:], a.Group)
		for j, text := range reasons {
			if text == a.Reason {
				le.PutUint16(r[ResultReason:], uint16(j))
			}
		}
	}
	for j, text := range reasons {
		le.PutUint32(b[table+j*ReasonSize+ReasonOffset:], uint32(len(b)))
		le.PutUint32(b[table+j*ReasonSize+ReasonLength:], uint32(len(text)))
		b = append(b, text...)
	}
	stateAt := len(b)
	b = append(b, state...)
	for at, v := range map[int]uint32{
		RespMagic: ResponseMagic, RespTotal: uint32(len(b)), RespHeaderLength: RespSize,
		RespResultsOffset: RespSize, RespResultsCount: uint32(len(results)), RespResultsStride: ResultSize,
		RespRequeueAfter: requeueMS, RespBalance: balance, RespStateOffset: uint32(stateAt),
		RespStateLength: uint32(len(state)), RespReasonsOffset: uint32(table), RespReasonsCount: uint32(len(reasons)),
	} {
		le.PutUint32(b[at:], v)
	}
	return b
}

func sampleResponse() []byte {
	return wire([]Result{
		{Value: 3, ResetAfterMS: NeverReset, Reason: "in the zone"},
		{Value: 0, ShedPermille: 250, Flags: FlagKeepDraining, ResetAfterMS: 5000, Reason: "draining: stage 2 of 3, 50 %"},
		{Value: 65535, ResetAfterMS: NeverReset},
	}, []string{"in the zone", "draining: stage 2 of 3, 50 %"}, "kept", 7000, BalanceRandom)
}

func TestResponseRoundTrip(t *testing.T) {
	var d Decoder
	var resp Response
	for range 2 { // the second time from the cache
		if err := d.DecodeResponse(sampleResponse(), 3, &resp); err != nil {
			t.Fatal(err)
		}
		want := "{7s 1 [107 101 112 116] [{3 0 0 0 4294967295 in the zone} {0 0 250 1 5000 draining: stage 2 of 3, 50 %} {65535 0 0 0 4294967295 }] [] [] [0 0 0 0]}"
		if got := fmt.Sprint(resp); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestDecodedResponseDoesNotAliasGuestMemory(t *testing.T) {
	var d Decoder
	var resp Response
	b := sampleResponse()
	if err := d.DecodeResponse(b, 3, &resp); err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(resp)
	clear(b)
	if after := fmt.Sprint(resp); after != before {
		t.Errorf("wiping the guest's memory changed the response to %s", after)
	}
}

func TestMalformedResponsesAreRefusedByField(t *testing.T) {
	put := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	reasons := RespSize + 3*ResultSize
	text := reasons + 2*ReasonSize
	for name, tt := range map[string]struct {
		mutate func([]byte) []byte
		want   string
	}{
		"empty":                  {func([]byte) []byte { return nil }, "shorter than the header"},
		"cut":                    {func(b []byte) []byte { return b[:len(b)-1] }, "total length"},
		"cut in the header":      {func(b []byte) []byte { return b[:LeastResponse-1] }, "shorter than the header"},
		"magic":                  {put(RespMagic, 1), "magic"},
		"total":                  {put(RespTotal, math.MaxUint32), "total length"},
		"header short":           {put(RespHeaderLength, LeastResponse-8), "header length"},
		"header long":            {put(RespHeaderLength, 1<<20), "header length"},
		"header odd":             {put(RespHeaderLength, RespSize+1), "header length"},
		"fewer results":          {put(RespResultsCount, 2), "result count"},
		"too many results":       {put(RespResultsCount, math.MaxUint32), "result count"},
		"stride zero":            {put(RespResultsStride, 0), "result stride"},
		"stride odd":             {put(RespResultsStride, ResultSize+4), "result stride"},
		"stride huge":            {put(RespResultsStride, 0xFFFFFFF8), "results"},
		"results in the header":  {put(RespResultsOffset, 8), "results"},
		"results beyond the end": {put(RespResultsOffset, math.MaxUint32), "results"},
		"balance":                {put(RespBalance, 5), "balance is 5"},
		"state too long":         {put(RespStateLength, MaxStateLen+1), "state is 1025 bytes"},
		"state beyond the end":   {put(RespStateOffset, math.MaxUint32), "state"},
		"too many reasons":       {put(RespReasonsCount, MaxReasonCount+1), "reason count"},
		"reasons beyond the end": {put(RespReasonsOffset, math.MaxUint32), "reasons"},
		"reason too long":        {put(reasons+ReasonLength, MaxReasonLen+1), "reason 0 is 257 bytes"},
		"reason beyond the end":  {put(reasons+ReasonSize+ReasonOffset, math.MaxUint32), "(reason 1)"},
		"reason not UTF-8":       {put(text, 0x20FF2020), "reason 0 is not printable UTF-8 at byte 2"},
		"reason with a newline":  {put(text, 0x20200A20), "reason 0 is not printable UTF-8 at byte 1"},
		"reason unknown":         {put(RespSize+ResultSize+ResultReason, 2), "result 1: reason is 2"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			var resp Response
			err := d.DecodeResponse(tt.mutate(sampleResponse()), 3, &resp)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestTotalLengthOfReasonsIsLimited(t *testing.T) {
	long := strings.Repeat("x", MaxReasonLen)
	var reasons []string
	for range MaxReasonsLen/MaxReasonLen + 1 {
		reasons = append(reasons, long)
	}
	var d Decoder
	var resp Response
	err := d.DecodeResponse(wire(nil, reasons, "", 0, 0), 0, &resp)
	if err == nil || !strings.Contains(err.Error(), "more than 4096 bytes together") {
		t.Errorf("got %v", err)
	}
	if err := d.DecodeResponse(wire(nil, reasons[1:], "", 0, 0), 0, &resp); err != nil {
		t.Error(err)
	}
}

func TestNewerAndUnusualResponsesAreRead(t *testing.T) {
	var d Decoder
	var resp Response
	b := wire([]Result{{Value: 1, ResetAfterMS: 9}}, nil, "", 0, 0)
	binary.LittleEndian.PutUint32(b[RespSize+ResultValue:], 70000)
	binary.LittleEndian.PutUint32(b[RespSize+ResultFlags:], math.MaxUint32)
	// A later minor version: longer header and records.
	newer := append(append(append([]byte(nil), b[:RespSize]...), make([]byte, 8)...), b[RespSize:]...)
	newer = append(newer, make([]byte, 8)...)
	binary.LittleEndian.PutUint32(newer[RespTotal:], uint32(len(newer)))
	binary.LittleEndian.PutUint32(newer[RespHeaderLength:], RespSize+8)
	binary.LittleEndian.PutUint32(newer[RespResultsOffset:], RespSize+8)
	binary.LittleEndian.PutUint32(newer[RespResultsStride:], ResultSize+8)
	for name, b := range map[string][]byte{"odd": b, "newer": newer} {
		if err := d.DecodeResponse(b, 1, &resp); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if a := resp.Results[0]; a != (Result{Value: 70000, ShedPermille: MaxShedPermille, Flags: FlagKeepDraining, ResetAfterMS: 9}) {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

func TestReasonCacheIsBounded(t *testing.T) {
	var d Decoder
	var resp Response
	for i := range 3 * maxCachedReasons {
		text := fmt.Sprint("at ", i)
		if err := d.DecodeResponse(wire([]Result{{Reason: text}}, []string{text}, "", 0, 0), 1, &resp); err != nil {
			t.Fatal(err)
		}
		if resp.Results[0].Reason != text {
			t.Fatalf("reason %q, want %q", resp.Results[0].Reason, text)
		}
	}
	if len(d.reasonCache) > maxCachedReasons {
		t.Errorf("%d cached reasons, more than %d", len(d.reasonCache), maxCachedReasons)
	}
}

func TestResponseTimesAreMilliseconds(t *testing.T) {
	var d Decoder
	var resp Response
	if err := d.DecodeResponse(wire(nil, nil, "", math.MaxUint32, 0), 0, &resp); err != nil {
		t.Fatal(err)
	}
	if resp.RequeueAfter != math.MaxUint32*time.Millisecond {
		t.Errorf("requeue %v", resp.RequeueAfter)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add(sampleResponse(), 3)
	f.Add(wire(nil, nil, "", 0, 0), 0)
	f.Add(wire(make([]Result, 9), []string{"", "ä"}, "s", 1, 4), 9)
	f.Fuzz(func(t *testing.T, b []byte, want int) {
		want = max(0, want%2000)
		var d Decoder
		var resp Response
		if d.DecodeResponse(b, want, &resp) != nil {
			return
		}
		if len(resp.Results) != want || len(resp.State) > MaxStateLen || resp.Balance > BalanceLeastConnections {
			t.Errorf("accepted: %d results of %d, state of %d bytes, balance %d",
				len(resp.Results), want, len(resp.State), resp.Balance)
		}
		for i, a := range resp.Results {
			if len(a.Reason) > MaxReasonLen || indexUnprintable([]byte(a.Reason)) >= 0 || a.Flags&^FlagKeepDraining != 0 ||
				a.ShedPermille > MaxShedPermille {
				t.Errorf("accepted result %d: %+v", i, a)
			}
		}
	})
}

func BenchmarkDecodeResponse(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			reasons := []string{"in the zone", "draining"}
			results := make([]Result, n)
			for i := range results {
				results[i] = Result{Value: 1, ResetAfterMS: NeverReset, Reason: reasons[i%2]}
			}
			wire := wire(results, reasons, "state", 1000, 0)
			var d Decoder
			var resp Response
			b.ReportAllocs()
			for b.Loop() {
				if err := d.DecodeResponse(wire, n, &resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
