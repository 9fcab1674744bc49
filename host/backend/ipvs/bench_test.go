package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// cluster is a plan of so many ClusterIPs with so many endpoints each.
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
			f.Pool.Members = append(f.Pool.Members, plan.Member{Addr: netip.AddrPortFrom(pod, 8080), Weight: 1})
		}
		p.Frontends[f.Key] = f
	}
	return p
}

func newOpen(b *testing.B) func() *Backend {
	if present() == nil {
		return newBed(b).open
	}
	d := newPretend(b)
	return func() *Backend {
		be, err := d.open()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { be.Close() })
		return be
	}
}

func cpu() float64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return float64(u.Utime.Nano()) / 1e9
}

// BenchmarkEverything programs a cluster from nothing, changes one endpoint of it, and reads it back by a restart. Where
// the kernel has no IPVS, there is a memory in its place.
func BenchmarkEverything(b *testing.B) {
	for _, services := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			for range b.N {
				open := newOpen(b)
				p := cluster(services, 10)
				measure := func(what string, be *Backend, next *plan.Plan, delta *plan.Delta) {
					user, begin := cpu(), time.Now()
					b.StartTimer()
					r, err := be.Apply(context.Background(), next, delta)
					b.StopTimer()
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(r.Messages), what+"-messages")
					b.ReportMetric(time.Since(begin).Seconds(), what+"-s")
					b.ReportMetric(cpu()-user, what+"-user-s")
				}
				be := open()
				measure("start", be, p, nil)
				next := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
				next.Apply(plan.Diff(next, p))
				for k, f := range p.Frontends {
					g := *f
					g.Pool.Members = append([]plan.Member{{Addr: netip.MustParseAddrPort("10.127.0.1:8080"), Weight: 1}}, f.Pool.Members[1:]...)
					next.Frontends[k] = &g
					break
				}
				measure("endpoint", be, next, plan.Diff(p, next))
				be.Close()
				measure("restart", open(), next, nil)
				runtime.GC()
			}
		})
	}
}
