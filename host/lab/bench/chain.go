package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// chainPlugins are the plugins of the policy that every Service has in measureChain.
var chainPlugins = []string{"outlier", "lifecycle", "locality"}

const (
	failingEndpoints = 1000 // each of another Service
	disturbRounds    = 4    // of each disturbance in turn
	disturbFor       = 2 * time.Second
	signalsPeriod    = 500 * time.Millisecond
)

// chainResult has the cost of a chain of plugins on every Service. Seconds are from the change to the last answer in force.
type chainResult struct {
	Size              string
	Start             chainWork // the whole cluster
	Evaluation        chainWork // all plugins have another revision
	Change            percentiles
	ChangeCalls       float64 // plugin calls per change of an endpoint
	Ready, Fail, Idle disturbance
	Endpoints         int
}

// chainWork is an evaluation of all Services.
type chainWork struct {
	Seconds, CPU, PluginCPU float64 // PluginCPU: of the threads that call plugins, and of the plugins' processes
	Calls                   uint64
	Planned                 int     // how often a Service was planned
	Throttled               float64 // seconds for which calls have waited for CPU time
}

// disturbance is what another Service's updates, every probeInterval, take meanwhile.
type disturbance struct {
	Other percentiles // milliseconds
	CPU   percentiles // of the engine's thread meanwhile, milliseconds
	Calls uint64

	other, cpu []float64
}

// add adds a round.
func (d *disturbance) add(w work, calls uint64) {
	d.other, d.cpu, d.Calls = append(d.other, w.marked...), append(d.cpu, w.markedCPU...), d.Calls+calls
	d.Other, d.CPU = percentilesOf(slices.Clone(d.other)), percentilesOf(slices.Clone(d.cpu))
}

// failingBackend counts refused connections to endpoints.
type failingBackend struct {
	*nftables.Backend
	mu      sync.Mutex
	failing []model.EndpointKey
	refused uint64
}

// ReadOutcomes implements backend.OutcomeCounter.
func (b *failingBackend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	counters, err := b.Backend.ReadOutcomes(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing != nil {
		b.refused += 5
	}
	for _, e := range b.failing {
		c := counters[e]
		c.Attempts, c.Refused = c.Attempts+b.refused, c.Refused+b.refused
		counters[e] = c
	}
	return counters, nil
}

func (b *failingBackend) fail(list []model.EndpointKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = list
}

// measureChain measures a chain of plugins on every Service in the present network namespace.
func measureChain(ctx context.Context, s size, how settings) (f chainResult, err error) {
	ticks, err := newTicker(probeInterval)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, ticks.stop()) }()
	f = chainResult{Size: s.String(), Endpoints: min(failingEndpoints, s.services-1)}
	failures := &failingBackend{}
	l, err := newHarness(ctx, harnessOptions{modules: how.modules, chain: chainPlugins, bound: true, locked: how.engineCPU, signals: signalsPeriod,
		wrap: func(b *nftables.Backend) backend.Backend { failures.Backend = b; return failures }})
	if err != nil {
		return f, err
	}
	defer l.stop()
	w := newClusterState(s)
	profiled := how.profile("start")
	all := w.all()
	if f.Start, err = l.evaluate(ctx, func() error {
		l.send(time.Now(), all)
		return l.waitProgrammed()
	}, len(chainPlugins)*s.services); err != nil {
		return f, err
	}
	profiled()
	profiled = how.profile("evaluation")
	if f.Evaluation, err = l.evaluate(ctx, func() error {
		return l.engine.Do(ctx, func(p *planner.Planner) { l.plugins.revise(); p.PluginsReloaded() })
	}, len(chainPlugins)*s.services); err != nil {
		return f, err
	}
	profiled()
	before, err := l.pluginCalls(ctx)
	if err != nil {
		return f, err
	}
	var latencies []float64
	for n := range how.changes {
		done, err := l.apply([]model.Change{w.change(1+n*7%(s.services-1), replaced)})
		if err != nil {
			return f, err
		}
		latencies = append(latencies, done.latencies...)
	}
	after, err := l.pluginCalls(ctx)
	if err != nil {
		return f, err
	}
	f.Change, f.ChangeCalls = percentilesOf(latencies), float64(after-before)/float64(how.changes)

	var failing []model.EndpointKey
	for i := range f.Endpoints {
		at := w.endpointsOfService(1 + i)[0]
		failing = append(failing, model.EndpointKey{Addr: netip.AddrPortFrom(at.Addr, 8080), Protocol: model.TCP})
	}
	profiled = how.profile("disturbed")
	defer profiled()
	for round := range disturbRounds {
		var others []model.Change
		for i := range f.Endpoints {
			others = append(others, w.change(1+i, []int{unready, readyAgain}[round%2]))
		}
		for _, of := range []struct {
			into    *disturbance
			changes []model.Change
			failing []model.EndpointKey
		}{{&f.Idle, nil, nil}, {&f.Ready, others, nil}, {&f.Fail, nil, failing}} {
			failures.fail(of.failing)
			if err := l.disturb(ctx, w, of.changes, ticks, of.into); err != nil {
				return f, err
			}
		}
	}
	return f, nil
}

// evaluate measures until the plugins have answered as many more calls, and nothing is left to program.
func (l *harness) evaluate(ctx context.Context, begin func() error, calls int) (r chainWork, err error) {
	before, err := l.pluginCalls(ctx)
	if err != nil {
		return r, err
	}
	l.latencies.reset()
	plugins, cpu, start := l.pluginCPU(), l.cpuSeconds(), time.Now()
	if err := begin(); err != nil {
		return r, err
	}
	for {
		var answered uint64
		awaited := 0
		if err := l.engine.Do(ctx, func(p *planner.Planner) {
			if answered = p.PluginCalls() - before; answered >= uint64(calls) {
				awaited = p.Awaited()
			}
		}); err != nil {
			return r, err
		}
		if answered >= uint64(calls) && awaited == 0 && l.latencies.left() == 0 {
			r.Calls = answered
			break
		}
		if time.Since(start) > 2*time.Minute {
			return r, fmt.Errorf("%d of %d plugin calls in two minutes: %+v", answered, calls, l.calls.Stats())
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.Seconds, r.CPU, r.PluginCPU = time.Since(start).Seconds(), l.cpuSeconds()-cpu, l.pluginCPU()-plugins
	r.Planned = l.latencies.reset().planned
	for _, s := range l.calls.Stats() {
		r.Throttled += s.Throttled.Seconds()
	}
	return r, nil
}

func (l *harness) pluginCalls(ctx context.Context) (n uint64, err error) {
	err = l.engine.Do(ctx, func(p *planner.Planner) { n = p.PluginCalls() })
	return n, err
}

// pluginCPU returns the CPU seconds that all plugins have used.
func (l *harness) pluginCPU() (sum float64) {
	for s := range maps.Values(l.calls.Stats()) {
		sum += s.CPU.Seconds()
	}
	return sum
}

// disturb sends changes, and updates Service 0 at each tick for disturbFor.
func (l *harness) disturb(ctx context.Context, w *clusterState, c []model.Change, ticks *ticker, d *disturbance) error {
	before, err := l.pluginCalls(ctx)
	if err != nil {
		return err
	}
	l.latencies.reset()
	begin := time.Now()
	if len(c) > 0 {
		l.send(begin, c)
	}
	for time.Since(begin) < disturbFor {
		if err := l.update(w, begin, ticks); err != nil {
			return err
		}
	}
	if err := l.waitProgrammed(); err != nil {
		return err
	}
	after, err := l.pluginCalls(ctx)
	d.add(l.latencies.reset(), after-before)
	return err
}

func (f *chainResult) print(w io.Writer) {
	fmt.Fprintf(w, "\n**A chain of plugins**, `%s` on every Service, %s, nftables; meanwhile an endpoint of another Service is updated every 5 ms\n\n| | |\n|---|---|\n",
		strings.Join(chainPlugins, "`, `"), f.Size)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "| %s | %s |\n", name, fmt.Sprintf(format, args...))
	}
	work := func(name string, c chainWork) {
		row(name, "%.2f s, %.2f s of CPU time, %.2f of it in %d plugin calls; Services planned %d times; throttled %.1f s", c.Seconds, c.CPU, c.PluginCPU, c.Calls, c.Planned, c.Throttled)
	}
	work("start of the whole cluster", f.Start)
	work("evaluation of all Services, no change of weights", f.Evaluation)
	row("endpoint update, plugin calls", "%.1f", f.ChangeCalls)
	row("endpoint update, ms: median, p99, max", "%.2f, %.2f, %.1f", f.Change.Median, f.Change.P99, f.Change.Max)
	other := func(name string, d disturbance) {
		row("other Service, ms: median, p99, max; "+name, "%.2f, %.2f, %.1f; %d calls", d.Other.Median, d.Other.P99, d.Other.Max, d.Calls)
	}
	other("nothing else changes", f.Idle)
	other(fmt.Sprintf("%d endpoints of as many Services become unready or ready at once", f.Endpoints), f.Ready)
	other(fmt.Sprintf("%d endpoints of as many Services refuse connections", f.Endpoints), f.Fail)
}
