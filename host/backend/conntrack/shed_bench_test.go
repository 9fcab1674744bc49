package conntrack

import (
	"context"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// BenchmarkListToShed lists a table of 50,000 connections to one endpoint, picks a fifth of them, and reports the CPU time of an
// entry.
func BenchmarkListToShed(b *testing.B) {
	const n = 50_000
	if limit := conntrackMax(b); limit < n {
		b.Skipf("net.netfilter.nf_conntrack_max is %d", limit)
	}
	flush(b)
	for i := range n {
		createConns(b, conn{shedClient(i), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpEstablished})
	}
	sheds := []plan.Shed{{Frontends: []plan.Key{key("10.96.0.10:80", model.TCP)}, Endpoint: shedEndpoint, Seed: 1, To: 1, Until: plan.ShedSpace / 5}}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cpu time.Duration
	b.ReportAllocs()
	for b.Loop() {
		var s shedder
		before := threadCPU(b)
		if err := s.list(context.Background(), sheds); err != nil || len(s.picks[idOf(&sheds[0])].list) < n/6 {
			b.Fatal(err, len(s.picks))
		}
		cpu += threadCPU(b) - before
	}
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N)/n, "cpu-µs/entry")
}
