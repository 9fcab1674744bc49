package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// cluster returns a plan of n Services with one ClusterIP and m endpoints each.
func cluster(n, m int) *plan.Plan {
	p := &plan.Plan{
		Global: plan.Global{
			PodSources:     []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")},
			ServiceCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")},
			MasqueradeMark: 0x4000,
		},
		Frontends: map[plan.Key]*plan.Frontend{},
	}
	for i := range n {
		f := clusterFrontend(i, m, 0)
		p.Frontends[f.Key] = f
	}
	return p
}

// clusterFrontend returns the frontend of Service i. The port of its last endpoint depends on the generation.
func clusterFrontend(i, m, generation int) *plan.Frontend {
	f := &plan.Frontend{
		Key: plan.Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Protocol: model.TCP},
		Owner: model.PortName{Service: model.Name{Namespace: fmt.Sprintf("ns-%d", i%50), Name: fmt.Sprintf("svc-%d", i)},
			Port: "http", Protocol: model.TCP},
		Masquerade: plan.MasqueradeOutside,
	}
	for j := range m {
		n := 1 + i*m + j
		port := uint16(8080)
		if j == m-1 {
			port += uint16(generation)
		}
		addr := netip.AddrFrom4([4]byte{byte(128 + n>>24), byte(n >> 16), byte(n >> 8), byte(n)})
		f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(addr, port), Weight: 1})
	}
	return f
}

var sizes = [][2]int{{1000, 10}, {5000, 10}, {10000, 10}, {10000, 25}, {10000, 50}}

func eachSize(b *testing.B, f func(b *testing.B, n, m int)) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("%dx%d", s[0], s[1]), func(b *testing.B) { f(b, s[0], s[1]) })
	}
}

// cpu returns this process's user and system time.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

// BenchmarkAll writes a plan into an empty kernel.
func BenchmarkAll(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		p := cluster(n, m)
		var used time.Duration
		for b.Loop() {
			b.StopTimer()
			d := newTestEnv(b, 0)
			b.StartTimer()
			begin := cpu(b)
			d.mustApply(p, nil)
			used += cpu(b) - begin
			b.StopTimer()
			if _, err := Cleanup(context.Background(), d.lab.Node.Fd()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		b.ReportMetric(used.Seconds()/float64(b.N), "cpu-s/op")
	})
}

// BenchmarkReplaceEndpoint replaces one endpoint of one Service.
func BenchmarkReplaceEndpoint(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		d := newTestEnv(b, 0)
		p := cluster(n, m)
		d.mustApply(p, nil)
		i := 0
		begin := cpu(b)
		for b.Loop() {
			i++
			f := clusterFrontend(i%n, m, i)
			delta := &plan.Delta{Changes: []plan.Change{{Key: f.Key, Old: p.Frontends[f.Key], New: f}}}
			p.Apply(delta)
			d.mustApply(p, delta)
		}
		b.ReportMetric((cpu(b)-begin).Seconds()*1e3/float64(b.N), "cpu-ms/op")
	})
}

// BenchmarkReplaceService deletes one Service and adds it again.
func BenchmarkReplaceService(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		d := newTestEnv(b, 0)
		p := cluster(n, m)
		d.mustApply(p, nil)
		i := 0
		begin := cpu(b)
		for b.Loop() {
			i++
			f := clusterFrontend(i%n, m, 0)
			gone := &plan.Delta{Changes: []plan.Change{{Key: f.Key, Old: p.Frontends[f.Key]}}}
			p.Apply(gone)
			d.mustApply(p, gone)
			back := &plan.Delta{Changes: []plan.Change{{Key: f.Key, New: f}}}
			p.Apply(back)
			d.mustApply(p, back)
		}
		b.ReportMetric((cpu(b)-begin).Seconds()*1e3/float64(b.N), "cpu-ms/op")
	})
}

// BenchmarkRestart reads a plan back and finds no difference.
func BenchmarkRestart(b *testing.B) {
	eachSize(b, func(b *testing.B, n, m int) {
		d := newTestEnv(b, 0)
		p := cluster(n, m)
		d.mustApply(p, nil)
		for b.Loop() {
			d.mustApply(p, nil)
		}
	})
}

func (d *testEnv) mustApply(p *plan.Plan, delta *plan.Delta) {
	d.Helper()
	if _, err := d.b.Apply(context.Background(), p, delta); err != nil {
		d.Fatal(err)
	}
}

// BenchmarkFlipWeights moves the weight of half of the endpoints of a large pool to the other half.
func BenchmarkFlipWeights(b *testing.B) {
	for _, n := range []int{1000, 10_000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			d := newTestEnv(b, 0)
			p := cluster(1000, 10)
			var states [2]*plan.Frontend
			for i := range states {
				states[i] = clusterFrontend(1000, n, 0)
				for j := range states[i].Pool.Endpoints {
					states[i].Pool.Endpoints[j].Weight = uint16(3 * ((i + j) % 2))
				}
			}
			p.Frontends[states[0].Key] = states[0]
			d.mustApply(p, nil)
			i, elements := 0, 0
			begin := cpu(b)
			for b.Loop() {
				i++
				elements += d.report(p, replaceFrontend(p, states[i%2])).Elements
			}
			b.ReportMetric((cpu(b)-begin).Seconds()*1e3/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(elements)/float64(b.N), "elements/op")
		})
	}
}
