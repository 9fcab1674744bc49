package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// cluster returns a plan of ClusterIP frontends with the given number of endpoints each.
func cluster(services, endpoints int) *plan.Plan {
	p := &plan.Plan{Global: plan.Global{MasqueradeMark: 0x4000}, Frontends: map[plan.Key]*plan.Frontend{}}
	vip, pod := netip.MustParseAddr("10.96.0.0"), netip.MustParseAddr("10.128.0.0")
	for i := range services {
		vip = vip.Next()
		f := &plan.Frontend{
			Key:   plan.Key{Addr: vip, Port: 80, Protocol: model.TCP},
			Owner: model.PortName{Service: model.Name{Namespace: "many", Name: fmt.Sprintf("svc-%d", i)}, Protocol: model.TCP},
		}
		for range endpoints {
			pod = pod.Next()
			f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(pod, 8080), Weight: 1})
		}
		p.Frontends[f.Key] = f
	}
	return p
}

func newOpen(b *testing.B) func() *Backend {
	if checkIPVS() == nil {
		return newEnv(b).open
	}
	return newMemEnv(b).open
}

// resourceUsage is the time that a process has used, in seconds.
type resourceUsage struct{ wall, user, system float64 }

func currentUsage() resourceUsage {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return resourceUsage{float64(time.Now().UnixNano()) / 1e9, float64(u.Utime.Nano()) / 1e9, float64(u.Stime.Nano()) / 1e9}
}

// queryCounter counts the queries of IPVS.
type queryCounter struct {
	ipvsAPI
	n int
}

func (a *queryCounter) listDestinations(k serverKey) ([]destinationState, error) {
	a.n++
	return a.ipvsAPI.listDestinations(k)
}
func (a *queryCounter) listCounters() (map[serverKey]serverCounters, error) {
	a.n++
	return a.ipvsAPI.listCounters()
}
func (a *queryCounter) listServers() (map[serverKey]serverConfig, error) {
	a.n++
	return a.ipvsAPI.listServers()
}

// BenchmarkEverything programs a cluster, replaces one endpoint, restarts, and reads the statistics for a scrape while
// endpoints change. If the kernel has no IPVS, it uses one in memory.
func BenchmarkEverything(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			for range b.N {
				benchCluster(b, services)
				runtime.GC()
			}
		})
	}
}

func benchCluster(b *testing.B, services int) {
	open := newOpen(b)
	p := cluster(services, 10)
	measure := func(what string, f func() (messages int, err error)) {
		runtime.GC()
		begin := currentUsage()
		b.StartTimer()
		messages, err := f()
		b.StopTimer()
		end := currentUsage()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(messages), what+"-messages")
		b.ReportMetric(end.wall-begin.wall, what+"-s")
		b.ReportMetric(end.user-begin.user, what+"-user-s")
		b.ReportMetric(end.system-begin.system, what+"-system-s")
	}
	apply := func(be *Backend, next *plan.Plan, delta *plan.Delta) func() (int, error) {
		return func() (int, error) {
			r, err := be.Apply(context.Background(), next, delta)
			return r.Messages, err
		}
	}
	be := open()
	measure("start", apply(be, p, nil))
	// Replace one endpoint.
	k := p.Keys()[0]
	pod := netip.MustParseAddr("10.127.0.0")
	change := func() (*plan.Plan, *plan.Delta) {
		pod = pod.Next()
		g := *p.Frontends[k]
		g.Pool.Endpoints = append([]plan.Endpoint{{Addr: netip.AddrPortFrom(pod, 8080), Weight: 1}}, g.Pool.Endpoints[1:]...)
		d := &plan.Delta{Changes: []plan.Change{{Key: k, Old: p.Frontends[k], New: &g}}}
		p = &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
		p.Frontends[k] = &g
		return p, d
	}
	next, delta := change()
	measure("endpoint", apply(be, next, delta))
	// As in sluice run, statistics are read over their own sockets.
	counter := open()
	queries := &queryCounter{ipvsAPI: counter.ipvs}
	counter.ipvs = queries
	measure("scrape", func() (int, error) {
		_, err := counter.readStats(context.Background(), services)
		return queries.n, err
	})
	if _, ok := be.ipvs.(kernelIPVS); ok { // fakeKernel is not safe for concurrent use
		benchUnderScrape(b, be, counter, services, change)
	}
	counter.Close()
	be.Close()
	be = open()
	queries = &queryCounter{ipvsAPI: be.ipvs}
	be.ipvs = queries
	measure("restart", apply(be, p, nil))
	b.ReportMetric(float64(queries.n), "restart-queries")
	be.Close()
}

// benchUnderScrape replaces an endpoint repeatedly while the statistics are read.
func benchUnderScrape(b *testing.B, be, counter *Backend, services int, change func() (*plan.Plan, *plan.Delta)) {
	ended := make(chan error)
	begin := time.Now()
	go func() {
		_, err := counter.readStats(context.Background(), services)
		ended <- err
	}()
	var took []time.Duration
	for under := true; under; {
		next, delta := change()
		began := time.Now()
		if _, err := be.Apply(context.Background(), next, delta); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		select {
		case err := <-ended:
			if under = false; err != nil {
				b.Fatal(err)
			}
		case <-time.After(time.Millisecond):
		}
	}
	b.ReportMetric(time.Since(begin).Seconds(), "scrape-under-changes-s")
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1000, "endpoint-under-scrape-ms")
	b.ReportMetric(took[len(took)-1].Seconds()*1000, "endpoint-under-scrape-max-ms")
}
