package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/dispatch"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/health"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/util/gctuner"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// harness is what `sluice run` consists of, except for the source: engine, planner, nftables, plugins, health checks and
// metrics.
type harness struct {
	engine    *engine.Engine
	in        channelSource
	latencies *latencyObserver
	plugins   *revisedPlugins
	policies  *policy.Set
	calls     *dispatch.Dispatcher
	log       *slog.Logger
	stop      func()
	ran       chan error
}

// harnessOptions configure a harness.
type harnessOptions struct {
	modules modules
	chain   []string // plugins to load
	bound   bool     // the chain is the policy of every Service
	// alternating is for Services that have weights, see alternatingBindings.
	alternating bool
	locked      bool // the engine has a thread of its own
	signals     time.Duration
	// wrap, if not nil, replaces the backend.
	wrap func(*nftables.Backend) backend.Backend
}

// newHarness starts an engine in the present network namespace.
func newHarness(ctx context.Context, o harnessOptions) (*harness, error) {
	gctuner.SetStartup()
	l := &harness{in: make(channelSource), latencies: newLatencyObserver(), ran: make(chan error, 1)}
	l.log = slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // formatted as in production, then discarded
	failed := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	kernel, err := nftables.Open(nftables.Options{Now: time.Now, Log: failed})
	if err != nil {
		return nil, err
	}
	policies := &policy.Set{}
	l.plugins, err = o.modules.loadAll(ctx, o.chain)
	if err != nil {
		return nil, errors.Join(err, kernel.Close())
	}
	self().ResetPeakRSS()
	if len(o.chain) > 0 {
		chain := &policy.Policy{Name: "chain"}
		for _, name := range o.chain {
			chain.Steps = append(chain.Steps, policy.Step{Plugin: name})
		}
		policies.Policies = map[string]*policy.Policy{chain.Name: chain}
		if o.bound {
			policies.Default = chain.Name
		}
	}
	if o.alternating {
		alternatingBindings(l.plugins, policies)
	}
	l.policies = policies
	var programs backend.Backend = kernel
	if o.wrap != nil {
		programs = o.wrap(kernel)
	}
	l.calls = dispatch.New(dispatch.Options{CPUPercent: config.Default().PluginLimits.CPUPercent, Log: failed})
	l.calls.Limit(config.Default().PluginLimits.CPUPercent, o.chain)
	h := health.New(health.Options{Now: time.Now, After: time.After, Log: failed, SyncPeriod: 30 * time.Second})
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Version: "bench", Started: time.Now()})
	backlog := gctuner.NewBacklog()
	l.engine = engine.New(engine.Options{
		Source: l.in, Backend: programs, Plugins: l.calls, Log: l.log, SyncPeriod: 30 * time.Second, SignalsPeriod: o.signals,
		ThreadCPU: func() time.Duration { return cpuOfThread(unix.Gettid()) },
		Observer:  engine.Observers{h, m, l.latencies, &engine.BacklogObserver{Pending: backlog.Pending}},
		Planner: planner.New(planner.Settings{
			Node: nodeName(0), MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("11.0.0.0/8")}, Policies: policies,
			Planning: config.Default().Planning, OutcomeNeeds: abi.NeedOutcomes,
		}, l.plugins.get),
	})
	ctx, stop := context.WithCancel(ctx)
	thread := make(chan int, 1)
	go func() {
		if o.locked {
			runtime.LockOSThread()
			thread <- unix.Gettid()
		}
		l.ran <- l.engine.Run(ctx)
	}()
	if o.locked {
		l.latencies.thread = <-thread
	}
	adjust := time.AfterFunc(10*time.Second, gctuner.Retune)
	go backlog.Run(ctx, time.After)
	l.stop = func() {
		adjust.Stop()
		stop()
		<-l.ran
		l.calls.Stop(time.Minute)
		h.Close()
		l.plugins.close()
		_ = kernel.Close()
	}
	return l, nil
}

// send emits changes with the time at which they were due.
func (l *harness) send(due time.Time, c []model.Change) {
	l.latencies.expect(due, len(c))
	l.in <- c
}

// waitProgrammed waits until the kernel has acknowledged all changes.
func (l *harness) waitProgrammed() error {
	for {
		select {
		case <-l.latencies.acknowledged:
			if l.latencies.idle() {
				return nil
			}
		case err := <-l.ran:
			l.ran <- err
			return fmt.Errorf("engine stopped: %w", err)
		case <-time.After(2 * time.Minute):
			return errors.New("changes not programmed within two minutes")
		}
	}
}

// apply sends changes and waits until they are programmed.
func (l *harness) apply(c []model.Change) (work, error) {
	l.latencies.reset()
	l.send(time.Now(), c)
	err := l.waitProgrammed()
	return l.latencies.reset(), err
}

// latencyObserver measures from the time at which a change was due to the kernel's acknowledgement. A marked change, which is to
// Service 0, is acknowledged with a step that changes its frontend, others with one that leaves nothing to do.
type latencyObserver struct {
	engine.Observers // no-op for the other methods

	mu           sync.Mutex
	due          []event // sent, not enqueued yet
	marked, rest waiting
	marking      bool // mark the next changes
	probed       bool // the present step changes the frontend of Service 0
	thread       int  // of the engine; 0: any
	sum          work
	acknowledged chan struct{}
}

// event is a change with the time at which it was due.
type event struct {
	at     time.Time
	cpu    time.Duration // of the engine's thread when the change was queued
	marked bool
}

// waiting are changes that have not been acknowledged. Marked ones have lists of their own, so that the cost of observing a step
// follows what it acknowledges.
type waiting struct{ queued, dequeued []event }

func (w *waiting) dequeue() { w.dequeued, w.queued = append(w.dequeued, w.queued...), w.queued[:0] }

func (w *waiting) idle() bool { return len(w.queued)+len(w.dequeued) == 0 }

// work is the work done since the last reset.
type work struct {
	latencies    []float64 // milliseconds
	marked       []float64 // of marked changes
	markedCPU    []float64 // CPU time of the engine's thread, in milliseconds, from when a marked change was queued
	planned      int       // Services
	messages     int
	transactions int
	longest      time.Duration
	last         time.Time // when changes that are not marked were last acknowledged
	left         int       // Services for the next
}

func newLatencyObserver() *latencyObserver {
	return &latencyObserver{acknowledged: make(chan struct{}, 1)}
}

func (s *latencyObserver) expect(due time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.due = append(s.due, event{at: due, marked: s.marking})
	}
	s.marking = false
}

// mark measures the next changes separately.
func (s *latencyObserver) mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marking = true
}

func (s *latencyObserver) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum.left
}

// unmarkedIdle reports whether all changes that are not marked have been acknowledged.
func (s *latencyObserver) unmarkedIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rest.idle() && !slices.ContainsFunc(s.due, func(e event) bool { return !e.marked })
}

func (s *latencyObserver) reset() work {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.sum
	s.sum = work{}
	return w
}

// idle reports whether all changes have been acknowledged.
func (s *latencyObserver) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.due) == 0 && s.marked.idle() && s.rest.idle()
}

// cpuOfThread returns the CPU time of a thread of this process, 0 for number 0.
func cpuOfThread(tid int) time.Duration {
	if tid == 0 {
		return 0
	}
	const perThread, scheduler = 4, 2 // as in CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED
	var t unix.Timespec
	_ = unix.ClockGettime(int32(^tid<<3|perThread|scheduler), &t)
	return time.Duration(t.Nano())
}

// OnEnqueue implements engine.Observer.
func (s *latencyObserver) OnEnqueue(changes []model.Change, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cpu := cpuOfThread(s.thread)
	for _, e := range s.due[:len(changes)] {
		e.cpu = cpu
		w := &s.rest
		if e.marked {
			w = &s.marked
		}
		w.queued = append(w.queued, e)
	}
	s.due = append(s.due[:0], s.due[len(changes):]...)
}

// OnDequeue implements engine.Observer.
func (s *latencyObserver) OnDequeue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marked.dequeue()
	s.rest.dequeue()
}

// OnPlan implements engine.Observer.
func (s *latencyObserver) OnPlan(p *engine.PlannedStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.planned += p.Result.Planned
	s.sum.left = p.Result.Remaining
	s.probed = s.probed || slices.ContainsFunc(p.Result.Delta.Changes, func(c plan.Change) bool {
		return c.New != nil && c.New.Owner.Service == serviceName(0)
	})
}

// OnApply implements engine.Observer.
func (s *latencyObserver) OnApply(p *engine.ApplyResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.messages += p.Report.Messages
	s.sum.transactions += p.Report.Transactions
	s.sum.longest = max(s.sum.longest, p.Report.Longest)
	if !p.Synced {
		return
	}
	if s.sum.left == 0 {
		if len(s.rest.dequeued) > 0 {
			s.sum.last = p.At
		}
		s.acknowledge(&s.rest, p.At)
	}
	if s.sum.left == 0 || s.probed {
		s.acknowledge(&s.marked, p.At)
	}
	s.probed = false
	select {
	case s.acknowledged <- struct{}{}:
	default:
	}
}

// acknowledge records the latencies of changes that were dequeued.
func (s *latencyObserver) acknowledge(w *waiting, at time.Time) {
	for _, e := range w.dequeued {
		ms := at.Sub(e.at).Seconds() * 1000
		s.sum.latencies = append(s.sum.latencies, ms)
		if e.marked {
			s.sum.marked = append(s.sum.marked, ms)
			s.sum.markedCPU = append(s.sum.markedCPU, milliseconds(cpuOfThread(s.thread)-e.cpu))
		}
	}
	w.dequeued = w.dequeued[:0]
}
