package wasm

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

type benchGuest struct {
	name   string
	module []byte
}

func benchGuests(b *testing.B) []benchGuest {
	return []benchGuest{
		{"C", cGuest(b, "../../../examples/plugin-c/zone_first.c")},
		{"Go", goGuest(b, "../../../plugins/locality")},
	}
}

// BenchmarkDecideInAProcess is BenchmarkDecide with plugins in processes: child-ns/op is their CPU time. bin/bench -calls
// measures several calls together.
func BenchmarkDecideInAProcess(b *testing.B) {
	benchmarkDecide(b, newHost(b, Options{Process: childCommand("plugin")}))
}

// BenchmarkDecide measures a whole call: encode, call, decide, decode.
func BenchmarkDecide(b *testing.B) {
	benchmarkDecide(b, newHost(b, Options{}))
	native, err := sdk.NewNativePlugin(locality.New, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range []int{1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("native/%d", n), func(b *testing.B) {
			req := SampleRequest(n)
			var resp abi.Response
			cpu := cpuTime(b)
			for b.Loop() {
				resp.Reset(n)
				if err := native.Decide(req, &resp); err != nil {
					b.Fatal(err)
				}
			}
			cpu()
		})
	}
}

func benchmarkDecide(b *testing.B, h *Host) {
	for _, g := range append(benchGuests(b), benchGuest{"Go-trivial", goGuest(b, "../../lab/bench/guest")}) {
		p := load(b, h, g.module, "")
		for _, n := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", g.name, n), func(b *testing.B) {
				req := SampleRequest(n)
				var resp abi.Response
				resp.Reset(n)
				b.ReportAllocs()
				cpu, child := cpuTime(b), p.ProcessCPU()
				for b.Loop() {
					if err := p.Decide(req, &resp); err != nil {
						b.Fatal(err)
					}
				}
				cpu()
				b.ReportMetric(float64(p.Stats().LastFuel), "fuel/op")
				b.ReportMetric(float64(p.ProcessCPU()-child)/float64(b.N), "child-ns/op")
			})
		}
	}
}

// cpuTime returns a function that reports the CPU time of the process per iteration, the relevant figure on a busy machine.
func cpuTime(b *testing.B) func() {
	start := processTime(b)
	return func() { b.ReportMetric(float64(processTime(b)-start)/float64(b.N), "cpu-ns/op") }
}

// processTime returns the CPU time of the process in nanoseconds.
func processTime(t testing.TB) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// BenchmarkMeter measures only the guest's part of a call, metered and unmetered.
func BenchmarkMeter(b *testing.B) {
	for _, g := range benchGuests(b) {
		metered, _, err := meter.Rewrite(g.module, meter.DefaultLimits())
		if err != nil {
			b.Fatal(err)
		}
		for _, kind := range []struct {
			name   string
			module []byte
		}{{"plain", g.module}, {"metered", metered}} {
			p := newPlain(b, kind.module)
			p.askNeeds(b)
			for _, n := range []int{10, 1000} {
				b.Run(fmt.Sprintf("%s/%d/%s", g.name, n, kind.name), func(b *testing.B) {
					decide, args, stack := p.prepare(b, SampleRequest(n))
					cpu := cpuTime(b)
					for b.Loop() {
						copy(stack, args)
						p.refuel()
						if err := decide.CallWithStack(context.Background(), stack); err != nil {
							b.Fatal(err)
						}
					}
					cpu()
				})
			}
		}
	}
}

// BenchmarkRepeats measures calls of which one in so many is repeated, with instances that are replaced from time to time.
func BenchmarkRepeats(b *testing.B) {
	h := newHost(b, Options{})
	for _, g := range benchGuests(b) {
		for _, oneIn := range []int{0, 64, 1} {
			for _, n := range []int{10, 1000} {
				b.Run(fmt.Sprintf("%s/%d/%d", g.name, n, oneIn), func(b *testing.B) {
					p := loadWith(b, h, g.module, LoadOptions{RepeatOneIn: oneIn})
					req := SampleRequest(n)
					var resp abi.Response
					cpu := cpuTime(b)
					for b.Loop() {
						req.Generation++
						resp.Reset(n)
						if err := p.Decide(req, &resp); err != nil {
							b.Fatal(err)
						}
					}
					cpu()
					s := p.Stats()
					b.ReportMetric(100*float64(s.Repeats.Fuel)/float64(s.Fuel), "%fuel")
				})
			}
		}
	}
}

// BenchmarkSelfTest measures the self-test of a plugin that is already compiled.
func BenchmarkSelfTest(b *testing.B) {
	h := newHost(b, Options{})
	// The last one uses nearly 10 M of fuel for each call.
	for _, g := range append(benchGuests(b), benchGuest{"expensive", burner(b, 1_100_000, "")}) {
		b.Run(g.name, func(b *testing.B) {
			p := load(b, h, g.module, "")
			p.dropAll()
			cpu := cpuTime(b)
			for b.Loop() {
				if err := p.selfTest(context.Background(), ""); err != nil {
					b.Fatal(err)
				}
			}
			cpu()
			b.ReportMetric(float64(p.report.SelfTest.Fuel)/float64(b.N), "fuel/op")
		})
	}
}

// BenchmarkServiceSettings measures Services with settings of their own, each other ones: what the first decision of one costs,
// with trying its settings, and a later one; and the memory of all plugins for each of them.
func BenchmarkServiceSettings(b *testing.B) {
	const services = 10_000
	for _, g := range []struct{ name, folder, format string }{
		{"locality", "../../../plugins/locality", `{"demand":"nodes","hold":"%ds","minEndpointsPerZone":%d}`},
		{"lifecycle", "../../../plugins/lifecycle", `{"drain": {"stages":[{"percent": 100, "duration": "%ds"},{"percent": 50, "duration": "%ds"}]}}`},
	} {
		req := SampleRequest(10)
		var resp abi.Response
		ask := func(b *testing.B, p *Plugin, i int) {
			req.Settings = abi.Settings{Text: fmt.Sprintf(g.format, 1+i%100, 1+i/100), Own: true}
			req.Namespace, req.Service = fmt.Sprint("ns", i%100), fmt.Sprint("s", i)
			resp.Reset(10)
			if err := p.Decide(req, &resp); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(g.name+"/first", func(b *testing.B) {
			cpu, bytes := int64(0), int64(0)
			for b.Loop() {
				b.StopTimer()
				h := newHost(b, Options{})
				p := load(b, h, goGuest(b, g.folder), "")
				ask(b, p, services)
				before, _ := h.MemoryInUse()
				begin := processTime(b)
				b.StartTimer()
				for i := range services {
					ask(b, p, i)
				}
				b.StopTimer()
				cpu += processTime(b) - begin
				if s := p.Stats(); s.Settings.Accepted != services+1 || s.Settings.Handles != 2*(services+1) || s.Open != 2 {
					b.Fatalf("%+v", s)
				}
				after, _ := h.MemoryInUse()
				bytes += after - before
				p.Close()
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu)/float64(services*b.N), "cpu-ns/service")
			b.ReportMetric(float64(bytes)/float64(services*b.N), "bytes/service")
		})
		for _, n := range []int{1, services} {
			b.Run(fmt.Sprintf("%s/later/settings=%d", g.name, n), func(b *testing.B) {
				p := load(b, newHost(b, Options{}), goGuest(b, g.folder), "")
				for i := range n {
					ask(b, p, i)
				}
				i, cpu := 0, cpuTime(b)
				for b.Loop() {
					ask(b, p, i%n)
					i++
				}
				cpu()
			})
		}
	}
}

// BenchmarkLoad measures a load of a plugin whose code is in the cache: the module until it can be called, and the self-test with
// its instances.
func BenchmarkLoad(b *testing.B) {
	h := newHost(b, Options{})
	for _, g := range benchGuests(b) {
		load(b, h, g.module, "").Close() // to fill the cache
		b.Run(g.name, func(b *testing.B) {
			cpu := cpuTime(b)
			for b.Loop() {
				p, err := h.Load(context.Background(), "test", g.module, nil)
				if err != nil {
					b.Fatal(err)
				}
				if !p.report.FromCache {
					b.Fatal("compiled")
				}
				if err := p.Close(); err != nil {
					b.Fatal(err)
				}
			}
			cpu()
		})
	}
}

// BenchmarkDecideAfterIdle measures the first call after the pages of a plugin's code were unmapped.
func BenchmarkDecideAfterIdle(b *testing.B) {
	h := newHost(b, Options{})
	for _, g := range benchGuests(b) {
		p := load(b, h, g.module, "")
		req := SampleRequest(10)
		var resp abi.Response
		resp.Reset(10)
		if err := p.Decide(req, &resp); err != nil {
			b.Fatal(err)
		}
		b.Run(g.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				h.ReleaseIdle()
				h.ReleaseIdle()
				b.StartTimer()
				if err := p.Decide(req, &resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
