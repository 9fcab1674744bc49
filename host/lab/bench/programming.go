package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

// programmingResult has the cost of programming one size. Latencies are in milliseconds, from the emission of the event to the
// kernel's acknowledgement. CPU time is that of this process and of its plugins' processes, memory that of this process, in MiB.
type programmingResult struct {
	Size                    string
	ColdStart, ColdStartCPU float64 // seconds: the whole cluster, from emission to the last acknowledgement
	Messages, Steps         int     // Steps: transactions
	Longest                 float64 // milliseconds: the longest transaction
	Start                   memory
	Endpoint, Service       percentiles
	EndpointCPU             float64 // milliseconds per update, user and system
	EndpointMessages        int     // maximum of one update
	Churn                   percentiles
	ChurnCPU, ChurnRate     float64 // CPUs; updates per second
	AfterChurn              memory
	IdleCPU                 float64 // CPUs
	Restart                 float64 // seconds: restart with existing rules
	RestartMessages         int
	OtherCPU                float64 // CPUs used by other processes meanwhile
}

// memory has the live heap, the resident memory after freed memory was returned, and the peak.
type memory struct{ Live, Resident, Peak float64 }

// percentiles has the median, 99th percentile and maximum of latencies.
type percentiles struct{ Median, P99, Max float64 }

func percentilesOf(ms []float64) percentiles {
	if len(ms) == 0 {
		return percentiles{}
	}
	slices.Sort(ms)
	at := func(q float64) float64 { return ms[min(len(ms)-1, int(q*float64(len(ms))))] }
	return percentiles{at(0.5), at(0.99), ms[len(ms)-1]}
}

// settings is the extent of a measurement.
type settings struct {
	changes     int
	churn, idle time.Duration
	modules     modules
	withPolicy  bool   // every Service has a policy
	profiles    string // directory for profiles; "": none
	// engineCPU: measureChain and measureLargeUpdates measure the CPU time of the engine, too. That takes a thread of its own,
	// which makes each of its waits for a plugin or a change some 10 µs longer. Product engines have none.
	engineCPU bool
}

// churnRate is in updates per second.
const churnRate = 1000

// measureProgramming measures one size in the present network namespace.
func measureProgramming(ctx context.Context, s size, how settings) (programmingResult, error) {
	f, noise := programmingResult{Size: s.String()}, startOtherCPU()
	l, err := newHarness(ctx, harnessOptions{modules: how.modules, chain: []string{"locality"}, bound: how.withPolicy})
	if err != nil {
		return f, err
	}
	defer l.stop()
	w := newClusterState(s)
	all := w.all()
	profiled := how.profile("start")
	cpu, begin := l.cpuSeconds(), time.Now()
	done, err := l.apply(all)
	if err == nil {
		err = l.waitAnswered(ctx)
	}
	if err != nil {
		return f, err
	}
	f.ColdStart, f.ColdStartCPU = time.Since(begin).Seconds(), l.cpuSeconds()-cpu
	profiled()
	f.Messages, f.Steps, f.Longest = done.messages, done.transactions, milliseconds(done.longest)
	f.Start = measureMemory()

	var endpoint, replacing []float64
	profiled = how.profile("changes")
	cpu = l.cpuSeconds()
	for n := range how.changes {
		for kind := range kindsOfChange {
			done, err := l.apply([]model.Change{w.change(n*7%s.services, kind)})
			if err != nil {
				return f, err
			}
			endpoint, f.EndpointMessages = append(endpoint, done.latencies...), max(f.EndpointMessages, done.messages)
		}
	}
	f.EndpointCPU = (l.cpuSeconds() - cpu) * 1000 / float64(len(endpoint))
	profiled()
	for n := range how.changes {
		i := n * 11 % s.services
		here, gone := append([]model.Change{service(i)}, slicesOf(i, w.endpointsOfService(i))...), []model.Change{}
		for _, c := range here {
			gone = append(gone, model.Change{Kind: c.Kind, Name: c.Name})
		}
		start := time.Now()
		for _, c := range [][]model.Change{gone, here} {
			if _, err := l.apply(c); err != nil {
				return f, err
			}
		}
		replacing = append(replacing, time.Since(start).Seconds()*1000)
	}
	f.Endpoint, f.Service = percentilesOf(endpoint), percentilesOf(replacing)

	self().ResetPeakRSS()
	profiled = how.profile("churn")
	cpu, begin = l.cpuSeconds(), time.Now()
	sum, n, err := churn(l, w, how.churn)
	if err != nil {
		return f, err
	}
	took := time.Since(begin).Seconds()
	f.Churn, f.ChurnCPU, f.ChurnRate = percentilesOf(sum.latencies), (l.cpuSeconds()-cpu)/took, float64(n)/took
	profiled()
	f.AfterChurn = memory{Peak: self().PeakRSS()}
	profiled = how.profile("idle")
	cpu, begin = l.cpuSeconds(), time.Now()
	time.Sleep(how.idle)
	f.IdleCPU = (l.cpuSeconds() - cpu) / time.Since(begin).Seconds()
	profiled()
	f.AfterChurn.Resident = self().RSS()
	profiled = how.profile("restart")
	r, seconds, err := restart(ctx, l)
	profiled()
	f.Restart, f.RestartMessages = seconds, r.Messages
	f.OtherCPU = noise.average()
	return f, err
}

// waitAnswered waits until all plugins have answered and the answers are programmed.
func (l *harness) waitAnswered(ctx context.Context) error {
	for awaited := 1; awaited > 0; time.Sleep(5 * time.Millisecond) {
		if err := l.engine.Do(ctx, func(p *planner.Planner) { awaited = p.Awaited() }); err != nil {
			return err
		}
		awaited += l.latencies.left()
	}
	return nil
}

// churn updates endpoints of random Services at churnRate.
func churn(l *harness, w *clusterState, lasting time.Duration) (work, int, error) {
	rng := rand.New(rand.NewPCG(3, 4))
	l.latencies.reset()
	begin, n := time.Now(), 0
	for ; ; n++ {
		due := begin.Add(time.Duration(n) * time.Second / churnRate)
		if due.Sub(begin) >= lasting {
			break
		}
		c := w.change(rng.IntN(w.services), []int{replaced, replaced, unready, readyAgain, added, removed}[rng.IntN(6)])
		time.Sleep(time.Until(due))
		l.send(due, []model.Change{c})
	}
	if err := l.waitProgrammed(); err != nil {
		return work{}, n, err
	}
	return l.latencies.reset(), n, nil
}

type report struct{ Messages int }

// restart opens a second backend and applies the present plan, as after an upgrade.
func restart(ctx context.Context, l *harness) (r report, seconds float64, err error) {
	doErr := l.engine.Do(ctx, func(p *planner.Planner) {
		b, oerr := nftables.Open(nftables.Options{Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		if err = oerr; err != nil {
			return
		}
		defer b.Close()
		start := time.Now()
		got, aerr := b.Apply(ctx, p.Current(), nil)
		seconds, r.Messages, err = time.Since(start).Seconds(), got.Messages, aerr
	})
	if err == nil {
		err = doErr
	}
	return r, seconds, err
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// cpuSeconds returns the CPU time of this process and of its plugins' processes.
func (l *harness) cpuSeconds() float64 { return cpuSeconds() + l.plugins.processCPU() }

func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

func measureMemory() memory {
	m := memory{Peak: self().PeakRSS()}
	gctuner.ReleaseStartup()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	m.Live, m.Resident = float64(stats.HeapAlloc)/(1<<20), self().RSS()
	return m
}

// self returns this process.
func self() benchutil.Process { return benchutil.Process(os.Getpid()) }

// profile records a CPU profile until the returned function is called, which also writes a heap profile.
func (e *settings) profile(name string) (end func()) {
	if e.profiles == "" {
		return func() {}
	}
	file, err := os.Create(filepath.Join(e.profiles, name+".cpu"))
	if err != nil {
		return func() {}
	}
	_ = pprof.StartCPUProfile(file)
	return func() {
		pprof.StopCPUProfile()
		file.Close()
		runtime.GC()
		if file, err = os.Create(filepath.Join(e.profiles, name+".heap")); err == nil {
			_ = pprof.WriteHeapProfile(file)
			file.Close()
		}
	}
}
