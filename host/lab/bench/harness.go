package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/dispatch"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/gctuner"
	"github.com/sluice-proxy/sluice/host/health"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/wasm"
)

// harness is what `sluice run` consists of, except for the source: engine, planner, nftables, plugins, health checks and
// metrics.
type harness struct {
	engine    *engine.Engine
	in        channelSource
	latencies *latencyObserver
	log       *slog.Logger
	stop      func()
	ran       chan error
}

// newHarness starts an engine in the present network namespace, with locked on its own thread. module is loaded as a
// plugin; with bound it is the policy of every Service.
func newHarness(ctx context.Context, module string, bound, locked bool) (*harness, error) {
	gctuner.SetStartup()
	l := &harness{in: make(channelSource), latencies: newLatencyObserver(), ran: make(chan error, 1)}
	l.log = slog.New(slog.NewTextHandler(io.Discard, nil)) //nolint:sloglint // formatted as in production, then discarded
	failed := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	backend, err := nftables.Open(nftables.Options{Now: time.Now, Log: failed})
	if err != nil {
		return nil, err
	}
	policies := &policy.Set{}
	var plugins func(string) (policy.Plugin, error)
	done := func() {}
	if module != "" {
		var p *wasm.Plugin
		if p, done, err = loadPlugin(ctx, module); err != nil {
			return nil, errors.Join(err, backend.Close())
		}
		plugins = func(string) (policy.Plugin, error) { return p, nil }
		policies.Policies = map[string]*policy.Policy{"zoned": {Name: "zoned", Steps: []policy.Step{{Plugin: "zone-spill"}}}}
		if bound {
			policies.Default = "zoned"
		}
	}
	calls := dispatch.New(dispatch.Options{CPUPercent: config.Default().PluginLimits.CPUPercent, Log: failed})
	h := health.New(health.Options{Now: time.Now, After: time.After, Log: failed, SyncPeriod: 30 * time.Second})
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Version: "bench", Started: time.Now()})
	l.engine = engine.New(engine.Options{
		Source: l.in, Backend: backend, Plugins: calls, Log: l.log, SyncPeriod: 30 * time.Second,
		Observer: engine.Observers{h, m, l.latencies},
		Planner: planner.New(planner.Settings{
			Node: nodeName(0), MasqueradeMark: 0x4000, PodSources: []netip.Prefix{netip.MustParsePrefix("11.0.0.0/8")}, Policies: policies,
			Limits: planner.Limits(config.Default().ServiceLimits),
		}, plugins),
	})
	ctx, stop := context.WithCancel(ctx)
	go func() {
		if locked {
			runtime.LockOSThread()
		}
		l.ran <- l.engine.Run(ctx)
	}()
	adjust := time.AfterFunc(10*time.Second, gctuner.Retune)
	l.stop = func() {
		adjust.Stop()
		stop()
		<-l.ran
		calls.Stop(time.Minute)
		h.Close()
		done()
		_ = backend.Close()
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

// modulePath returns the path of the plugin that policies are measured with.
func modulePath(bin string) string { return filepath.Join(bin, "plugins/zone-spill.wasm") }

// latencyObserver measures from the time at which a change was due to the kernel's acknowledgement.
type latencyObserver struct {
	engine.Observers // no-op for the other methods

	mu               sync.Mutex
	due              []event // sent, not enqueued yet
	queued, dequeued []event
	marking          bool // mark the next changes
	sum              work
	acknowledged     chan struct{}
}

// event is a change with the time at which it was due.
type event struct {
	at     time.Time
	marked bool
}

// work is the work done since the last reset.
type work struct {
	latencies    []float64 // milliseconds
	marked       []float64 // of marked changes
	planned      int       // Services
	messages     int
	transactions int
	longest      time.Duration
	last         time.Time // when more than one Service was last planned and acknowledged
	pending      int       // Services of the present step
	left         int       // Services for the next
}

func newLatencyObserver() *latencyObserver {
	return &latencyObserver{acknowledged: make(chan struct{}, 1)}
}

func (s *latencyObserver) expect(due time.Time, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		s.due = append(s.due, event{due, s.marking})
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
	return len(s.due)+len(s.queued)+len(s.dequeued) == 0
}

// OnEnqueue implements engine.Observer.
func (s *latencyObserver) OnEnqueue(changes []model.Change, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = append(s.queued, s.due[:len(changes)]...)
	s.due = append(s.due[:0], s.due[len(changes):]...)
}

// OnDequeue implements engine.Observer.
func (s *latencyObserver) OnDequeue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dequeued = append(s.dequeued, s.queued...)
	s.queued = s.queued[:0]
}

// OnPlan implements engine.Observer.
func (s *latencyObserver) OnPlan(p *engine.PlannedStep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.planned += p.Result.Planned
	s.sum.pending, s.sum.left = p.Result.Planned, p.Result.Remaining
}

// OnApply implements engine.Observer.
func (s *latencyObserver) OnApply(p *engine.ApplyResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.messages += p.Report.Messages
	s.sum.transactions += p.Report.Transactions
	s.sum.longest = max(s.sum.longest, p.Report.Longest)
	if s.sum.pending > 1 || s.sum.last.IsZero() {
		s.sum.last = p.At
	}
	if !p.Synced {
		return
	}
	for _, e := range s.dequeued {
		ms := p.At.Sub(e.at).Seconds() * 1000
		s.sum.latencies = append(s.sum.latencies, ms)
		if e.marked {
			s.sum.marked = append(s.sum.marked, ms)
		}
	}
	s.dequeued = s.dequeued[:0]
	select {
	case s.acknowledged <- struct{}{}:
	default:
	}
}
