package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestMemoryPerEndpointIsBounded: if every Service has a policy, condition times, the answers of all plugins and the
// decision are stored for each endpoint of the cluster.
func TestMemoryPerEndpointIsBounded(t *testing.T) {
	const pools, endpoints, most = 1000, 100, 40
	plugin := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		for i := range req.Endpoints {
			resp.Results[i].Value = uint32(1 + i)
			resp.Results[i].Reason = fmt.Sprint("of kind ", i%3)
		}
		return nil
	}}
	b := newFixture(plugin)
	port := *b.in.Port
	port.Endpoints = make([]eligibility.Endpoint, endpoints)
	b.in.Port = &port
	one := func(n int) {
		port.Name.Service.Name = "svc" // its own length is not what is measured
		port.Name.Port = portNames[n]
		for i := range port.Endpoints {
			a := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), byte(i)})
			port.Endpoints[i] = eligibility.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true, Serving: true, InCluster: true}
		}
		if d, _ := b.decide(); d.Origin != FromChain {
			t.Fatal(d.Err)
		}
	}
	one(0)
	before := heap()
	for n := range pools {
		one(1 + n)
	}
	per := float64(heap()-before) / (pools * endpoints)
	runtime.KeepAlive(b)
	t.Logf("%.1f bytes", per)
	if per > most {
		t.Errorf("%.1f bytes are kept of an endpoint, more than %d", per, most)
	}
	if per < 1 {
		t.Error("this measures nothing")
	}
}

var portNames = func() (names [2000]string) {
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	return names
}()

// heap is what is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestReasonsRoundTrip(t *testing.T) {
	for _, want := range [][]string{{}, {"", ""}, {"a", "a", "", "b", "a"}, {"", "x"}} {
		r := PackReasons(len(want), func(i int) string { return want[i] })
		for i := range want {
			if got := r.At(i); got != want[i] {
				t.Errorf("%q at %d of %q", got, i, want)
			}
		}
	}
}

// TestTimesOutOfRangeAreClamped: a clock may be wrong by any amount.
func TestTimesOutOfRangeAreClamped(t *testing.T) {
	var h conditionTimes
	eps := []eligibility.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true}}
	for _, now := range []time.Time{{}, time.Unix(0, 0), time.Unix(1<<40, 0)} {
		h = conditionTimes{}
		h.update(eps, now)
		if at := milliseconds(h.times[0].ready); at <= 0 || at%1000 != 0 {
			t.Errorf("%s: ready since %d", now, at)
		}
	}
}
