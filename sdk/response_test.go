package sdk

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// decideFunc is a plugin that consists of a function.
type decideFunc func(req *Request, resp *Response) error

func (decideFunc) Configure([]byte) error                      { return nil }
func (d decideFunc) Decide(req *Request, resp *Response) error { return d(req, resp) }

func requestOf(weights ...uint32) *abi.Request {
	req := &abi.Request{Service: "web"}
	for i, w := range weights {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)
		req.Endpoints = append(req.Endpoints, abi.Endpoint{Addr: addr, Share: w, PriorWeight: abi.NoWeight})
	}
	return req
}

func ask(t *testing.T, req *abi.Request, d decideFunc) (*abi.Response, error) {
	t.Helper()
	n, err := NewNativePlugin(func() Plugin { return d }, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp := new(abi.Response)
	return resp, n.Decide(req, resp)
}

func TestUnsetResultsKeepTheInput(t *testing.T) {
	resp, err := ask(t, requestOf(0, 1, 65535), func(*Request, *Response) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := "{0s 0 [] [{0 0 0 0 4294967295 } {1 0 0 0 4294967295 } {65535 0 0 0 4294967295 }] [] [] [0 0 0 0]}"
	if got := fmt.Sprint(*resp); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestResponseRoundTrip(t *testing.T) {
	resp, err := ask(t, requestOf(1, 1, 1, 1), func(_ *Request, resp *Response) error {
		resp.SetShare(0, 7)
		resp.SetShare(1, -3)
		resp.SetShare(2, 1<<20)
		if resp.Value(0) != 7 || resp.Value(3) != 1 {
			return errors.New("Weight does not return the value that was set")
		}
		resp.SetReason(0, "same")
		resp.SetReason(1, "other")
		resp.SetReasonID(2, resp.AddReason("same"))
		resp.KeepDraining(1)
		resp.SetResetAfter(1, 1500*Millisecond)
		resp.SetResetAfter(2, -Second)
		resp.SetResetAfter(3, math.MaxInt64)
		resp.SetShed(0, -1)
		resp.SetShed(1, 7)
		resp.SetShed(2, 1<<20)
		resp.KeepDraining(2)
		resp.RequeueAfter(Minute)
		resp.RequeueAfter(Second + 1)
		resp.RequeueAfter(Hour)
		resp.SetState([]byte("one"))
		resp.SetState([]byte("two"))
		resp.SetBalance(BalanceSourceHash)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "{1.001s 3 [116 119 111] [{7 0 0 0 4294967295 same} {0 0 7 1 1500 other} {1048576 0 1000 1 0 same} {1 0 0 0 4294967294 }] [] [] [0 0 0 0]}"
	if got := fmt.Sprint(*resp); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRequeueAfterZeroIsOneMillisecond(t *testing.T) {
	for _, d := range []Duration{0, -Second, 1} {
		resp, err := ask(t, requestOf(1), func(_ *Request, resp *Response) error { resp.RequeueAfter(d); return nil })
		if err != nil || resp.RequeueAfter != time.Millisecond {
			t.Errorf("Requeue(%v): %v, %v", d, resp.RequeueAfter, err)
		}
	}
}

func TestReasonsAreMadePrintable(t *testing.T) {
	for text, want := range map[string]string{
		"zone ä, 50 %":                       "zone ä, 50 %",
		"two\nlines\tand \x1b[31m":           "two?lines?and ?[31m",
		"not \xff UTF-8":                     "not ? UTF-8",
		strings.Repeat("x", 300):             strings.Repeat("x", 256),
		strings.Repeat("ä", 300):             strings.Repeat("ä", 128),
		strings.Repeat("x", 255) + "ä" + "y": strings.Repeat("x", 255),
		"":                                   "",
	} {
		resp, err := ask(t, requestOf(1), func(_ *Request, resp *Response) error { resp.SetReason(0, text); return nil })
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := resp.Results[0].Reason; got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestReasonsBeyondTheLimitAreDropped(t *testing.T) {
	for name, text := range map[string]func(i int) string{
		"many": func(i int) string { return fmt.Sprint(i) },
		"long": func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 500)) },
	} {
		resp, err := ask(t, requestOf(make([]uint32, 600)...), func(req *Request, resp *Response) error {
			for i := range req.NumEndpoints() {
				resp.SetReason(i, text(i))
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if resp.Results[0].Reason == "" || resp.Results[599].Reason != "" {
			t.Errorf("%s: the first reason is %q, the last %q", name, resp.Results[0].Reason, resp.Results[599].Reason)
		}
	}
}

func TestPluginErrorsAreReturned(t *testing.T) {
	for name, tt := range map[string]struct {
		do   decideFunc
		want string
	}{
		"error":   {func(*Request, *Response) error { return errors.New("no such thing") }, "the plugin returned an error: no such thing"},
		"panic":   {func(_ *Request, resp *Response) error { resp.SetShare(9, 1); return nil }, "panic: sdk: index out of range: endpoint 9 of 1"},
		"state":   {func(_ *Request, r *Response) error { r.SetState(make([]byte, 1025)); return nil }, "state is 1025 bytes, more than 1024"},
		"balance": {func(_ *Request, r *Response) error { r.SetBalance(9); return nil }, "balance 9 is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ask(t, requestOf(1), tt.do); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestResponseTooLargeForTheBufferIsAnError(t *testing.T) {
	var e abi.Encoder
	req := e.AppendRequest(nil, requestOf(1, 1), plainView)
	in := instance{plugin: decideFunc(func(_ *Request, resp *Response) error { resp.SetState([]byte("abc")); return nil })}
	full, err := in.decideBytes(req, make([]byte, 1000))
	if err != nil {
		t.Fatal(err)
	}
	for size := range int(full) {
		if code, err := in.decideBytes(req, make([]byte, size)); code != abi.CodeNoRoom || err == nil {
			t.Fatalf("%d bytes of %d: code %d, %v", size, full, code, err)
		}
	}
}

func TestLongestResponseFitsMaxResponse(t *testing.T) {
	resp, err := ask(t, requestOf(make([]uint32, 300)...), func(req *Request, resp *Response) error {
		for i := range req.NumEndpoints() {
			resp.SetReason(i, fmt.Sprintf("%015d", i)) // 256 × 15, then 3 more
		}
		resp.SetState(make([]byte, MaxStateLen))
		return nil
	})
	if err != nil || len(resp.State) != MaxStateLen || resp.Results[255].Reason == "" {
		t.Errorf("%v", err)
	}
}

// counting needs connections, and copies its settings to the weights.
type counting struct {
	weight int64
}

func (c *counting) Configure(s []byte) error {
	return ParseSettings(s, func(f *Fields) { f.Int("weight", &c.weight, 0, 100) })
}
func (c *counting) Needs() Need { return NeedConnections }
func (c *counting) Decide(_ *Request, resp *Response) error {
	resp.SetShare(0, int(c.weight))
	return nil
}

func TestNativePluginNeedsAndRevision(t *testing.T) {
	native := func(s string) *NativePlugin {
		n, err := NewNativePlugin(func() Plugin { return &counting{weight: 3} }, []byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	a, b := native(`{"weight":4}`), native("")
	if a.Needs() != abi.NeedConnections || a.Revision() == b.Revision() || a.Revision() != native(`{"weight":4}`).Revision() {
		t.Errorf("needs %d, revisions %s and %s", a.Needs(), a.Revision(), b.Revision())
	}
	for n, want := range map[*NativePlugin]uint32{a: 4, b: 3} {
		var resp abi.Response
		if err := n.Decide(requestOf(1), &resp); err != nil || resp.Results[0].Value != want {
			t.Errorf("weight %v, want %d, %v", resp.Results, want, err)
		}
	}
	if _, err := NewNativePlugin(func() Plugin { return &counting{} }, []byte(`{"weigth":4}`)); err == nil || !strings.Contains(err.Error(), `"weigth"`) {
		t.Errorf("a misspelt setting: %v", err)
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	n, err := NewNativePlugin(func() Plugin { return readWeights{} }, nil)
	if err != nil {
		t.Fatal(err)
	}
	req := requestOf(make([]uint32, 100)...)
	var resp abi.Response
	allocs := testing.AllocsPerRun(100, func() {
		if err := n.DecideNoRecover(req, &resp); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations a decision", allocs)
	}
}

type readWeights struct{}

func (readWeights) Configure([]byte) error { return nil }
func (readWeights) Decide(req *Request, resp *Response) error {
	zone := req.NodeZone()
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Zone() == zone {
			resp.SetShare(i, e.Share()+1)
			resp.SetReason(i, "in the zone")
		}
	}
	return nil
}

func BenchmarkNative(b *testing.B) {
	for _, count := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			n, err := NewNativePlugin(func() Plugin { return readWeights{} }, nil)
			if err != nil {
				b.Fatal(err)
			}
			req := requestOf(make([]uint32, count)...)
			var resp abi.Response
			b.ReportAllocs()
			for b.Loop() {
				if err := n.DecideNoRecover(req, &resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
