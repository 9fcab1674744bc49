package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
)

// Options configures an Engine.
type Options struct {
	Source    Source
	Backend   backend.Backend
	Planner   *planner.Planner
	ConnTable ConnTable // nil: connections are never reset
	// Plugins calls the plugins; nil: they are called in the loop.
	Plugins Plugins
	Log     *slog.Logger
	// Clock reads the node's clocks. If nil, the plan's clock stops while the machine is suspended, and drains in progress start
	// over after a restart.
	Clock func() ClockReading
	// Checkpoint stores what must survive a restart. If nil, nothing does.
	Checkpoint Checkpoint
	Observer   Observer // may be nil
	Recorder   Recorder // may be nil
	// PluginsReady, if set, is closed once plugins can be called. A restart (a start with a usable checkpoint) waits for
	// it, for at most a second. A first start does not.
	PluginsReady <-chan struct{}
	// MinSyncPeriod is the minimum time between the starts of two steps. Zero means that changes are never delayed.
	MinSyncPeriod time.Duration
	// SyncPeriod is the interval of checks for external changes that the backend's Watch missed. Zero disables them.
	SyncPeriod time.Duration
	// SignalsPeriod is the minimum time between two readings of the outcomes of connections, and between two
	// counts of open connections. Zero: neither is read.
	SignalsPeriod time.Duration
	// ThreadCPU returns the CPU time that the calling thread has used. Nil: readings and steps count with the time that they
	// take.
	ThreadCPU func() time.Duration
	// Once makes Run return when the initial state is programmed and all plugins have answered, or a minute later.
	Once bool
}

// Engine keeps the data plane in line with the plan.
type Engine struct {
	Options
	queue *changeQueue
	calls chan func(*planner.Planner)
	swaps chan *swapRequest
	done  chan struct{} // closed when Run returns

	sync            syncState
	clock           planClock
	planAt          time.Time // when the planner asks for the next step, by its clock; zero: only on a change
	degraded        int       // frontends that the backend cannot represent as planned
	checkpoint      checkpointState
	stale           staleUDP
	drift           drift
	watched         bool // Backend, by watch
	sheds           job
	unreplied       unreplied
	uncertain       bool // connections that were reset may go on
	signals         signals
	annotations     annotationLog
	updates         updates
	nextStep        time.Time // no step before this time (MinSyncPeriod)
	startupDeadline time.Time // end of the wait for PluginsReady
	answers         <-chan struct{}
	decideBefore    time.Time // end of the wait for plugins with Options.Once
}

// syncState is the relation of the data plane to the plan.
type syncState struct {
	full         bool               // the next Apply compares the whole plan with the data plane
	done         bool               // the whole plan has been programmed at least once
	unprogrammed int                // frontends that could not be programmed (backend.PartialError)
	failed       map[plan.Key]error // those of unprogrammed that have been reported
	requeueAt    time.Time
	// backoff is the delay before retryAt, zero if the last Apply succeeded.
	backoff time.Duration
	retryAt time.Time
	// lastLoggedError is the last failure that was logged as an error: a repeated one is logged at debug level.
	lastLoggedError string
}

func (s *syncState) succeeded() {
	s.unprogrammed, s.failed, s.backoff, s.retryAt, s.lastLoggedError = 0, nil, 0, time.Time{}, ""
}

// How long a step waits for the answers of plugins. A call takes some microseconds; its Service is then programmed once instead
// of twice. An answer that comes later has a step of its own. Nothing waits for the first step, except for what it programs: it
// waits for as long as a chain of three plugins takes for 10,000 Services, which would otherwise be programmed twice.
const (
	answerWait      = 2 * time.Millisecond
	firstAnswerWait = 300 * time.Millisecond
)

// decideWait bounds how long Options.Once waits for plugins that never stop asking to be called again.
const decideWait = time.Minute

// Back-off after a failed Apply.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// maintenanceInterval separates an Apply that completes an update from one that only waits for connections to end, such
// as those of a removed endpoint. Options.Once does not wait for the latter.
const maintenanceInterval = 30 * time.Second

// New returns an engine. Run starts it.
func New(o Options) *Engine {
	if o.Observer == nil {
		o.Observer = Observers{}
	}
	if o.Clock == nil {
		o.Clock = runtimeClock()
	}
	if o.ThreadCPU == nil {
		begin := time.Now()
		o.ThreadCPU = func() time.Duration { return time.Since(begin) }
	}
	e := &Engine{
		Options:   o,
		queue:     newChangeQueue(o.Observer),
		calls:     make(chan func(*planner.Planner)),
		swaps:     make(chan *swapRequest),
		done:      make(chan struct{}),
		sync:      syncState{full: true},
		clock:     planClock{read: o.Clock},
		stale:     staleUDP{pending: map[plan.Key]bool{}, former: map[netip.Addr]bool{}, job: newJob()},
		drift:     drift{ready: make(chan struct{}, 1)},
		sheds:     newJob(),
		unreplied: unreplied{due: map[plan.Reset]time.Time{}, job: newJob()},
		signals:   newSignals(),
	}
	o.Planner.UseSignals(&e.signals)
	o.Planner.PlanInBatches()
	o.Planner.SetCaps(o.Backend.Caps())
	if o.Plugins != nil {
		e.answers = o.Plugins.Ready()
	}
	return e
}

// Run blocks until ctx is done or the source fails. The data plane is left as it is and keeps forwarding.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.done)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	sourceDone := make(chan error, 1)
	go func() { sourceDone <- e.Source.Run(ctx, e.queue.put) }()
	defer func() {
		stop()
		if sourceDone != nil {
			<-sourceDone
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	if e.restore() {
		e.startupDeadline = time.Now().Add(pluginWait)
	}
	if s, ok := e.Source.(NodeRememberer); ok {
		s.RememberNode(e.Planner.LastNode())
	}
	defer e.save(time.Time{})
	var check <-chan time.Time
	unwatch := func() {} // until the data plane is in line with the plan
	defer func() { unwatch() }()
	defer e.stopStaleUDP()
	defer e.sheds.wait(true)
	defer e.unreplied.job.wait(true)
	defer e.stopSignals()
	if b, ok := e.Backend.(backend.Preloader); ok {
		_ = b.Preload(ctx) // while the source reads the cluster; Apply reports what is wrong
	}
	wake := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-sourceDone:
			sourceDone = nil
			if ctx.Err() != nil {
				return nil
			}
			if err == nil {
				err = errors.New("it returned without an error")
			}
			return fmt.Errorf("the source of cluster state ended: %w", err)
		case <-e.queue.ready: // step takes the changes
		case <-e.PluginsReady:
		case <-e.answers: // step takes them
		case call := <-e.calls:
			call(e.Planner)
		case s := <-e.swaps:
			unwatch() // writes of the new backend are not external changes
			e.stopSignals()
			e.sheds.wait(false) // it may use the backend
			e.swap(ctx, s)
			check, unwatch, e.watched = nil, func() {}, false
			close(s.done)
		case <-e.drift.ready:
		case result := <-e.sheds.results:
			e.sheds.finish(result)
		case result := <-e.signals.reading.results:
			e.signals.reading.finish(result)
		case result := <-e.signals.counting.results:
			e.signals.counting.finish(result)
		case result := <-e.stale.job.results:
			e.stale.job.finish(result)
		case result := <-e.unreplied.job.results:
			e.unreplied.job.finish(result)
		case <-check:
			e.checkDrift(ctx)
		case <-timer.C:
			if sleep := e.untilDue(wake); sleep > 0 {
				timer.Reset(sleep)
				continue
			}
		}
		wake = e.step(ctx)
		if e.sync.done && !e.watched {
			check, unwatch = e.watch()
		}
		settled := e.sync.requeueAt.IsZero() || time.Until(e.sync.requeueAt) >= maintenanceInterval
		sleep := e.untilDue(wake)
		if e.Once && e.sync.done && e.sync.backoff == 0 && settled && e.decided(sleep) {
			return nil
		}
		timer.Stop()
		if sleep >= 0 {
			timer.Reset(sleep)
		}
		if sleep == 0 {
			// A step never waits, so in a backlog this goroutine would keep its P. The runtime looks for network events, and
			// gives the garbage collector's workers their share in small pieces, only where a goroutine makes way.
			runtime.Gosched()
		}
	}
}

// decided reports whether Options.Once need not wait for plugins, given how long the loop would sleep.
func (e *Engine) decided(sleep time.Duration) bool {
	waiting := e.Planner.Awaited()
	if waiting == 0 {
		return sleep != 0
	}
	if e.decideBefore.IsZero() {
		e.decideBefore = time.Now().Add(decideWait)
	}
	if time.Now().Before(e.decideBefore) {
		return false
	}
	e.Log.Warn("plugins have not answered in time; the last good or the default decisions stay in force", "decisions", waiting)
	return true
}

// Do runs f between two steps with exclusive access to the planner, then plans again. It returns early when ctx is done
// or the engine ends.
func (e *Engine) Do(ctx context.Context, f func(*planner.Planner)) error {
	finished := make(chan struct{})
	call := func(p *planner.Planner) {
		defer close(finished)
		f(p)
	}
	select {
	case e.calls <- call:
		<-finished
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return errStopped
	}
}

var errStopped = errors.New("the engine has stopped")

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earliest returns the earliest of the times that are not zero, or zero.
func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
