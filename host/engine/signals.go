package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"runtime"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// signals is what the engine knows of connections. It implements policy.Signals, for the planner, in the loop.
type signals struct {
	tracker     *outcomes.Tracker
	outcomes    schedule
	connections schedule
	open        outcomes.Open

	reading  job // of outcomes
	counting job // of open connections
	// The count is by the backend, and must not overlap with its other calls.
	exclusive bool
}

func newSignals() signals {
	return signals{tracker: outcomes.NewTracker(), reading: newJob(), counting: newJob()}
}

// schedule is when the next reading of a signal is due.
type schedule struct {
	active   bool      // there is something to read
	nextAt   time.Time // runtime's clock
	interval time.Duration
	lastAt   time.Time // end of the last reading that succeeded; zero: none
	// lastError is the failure that was logged last, while it lasts.
	lastError string
}

const (
	// readTimeout bounds a reading of outcomes, and a count by the backend. The next Apply waits for the latter at most that
	// long, see mayInterrupt.
	readTimeout = 2 * time.Second
	// Bounds of the CPU time that readings of outcomes and counts of open connections take: one part in so many of one processor.
	maxReadShare  = 20
	maxCountShare = 100
	// staleIntervals is for how many intervals a reading may be used, and how many counts may be interrupted.
	staleIntervals = 5
)

// begin starts a schedule, with the first reading after delay.
func (s *schedule) begin(period, delay time.Duration) {
	*s = schedule{active: true, interval: period, nextAt: time.Now().Add(delay), lastAt: time.Now()}
}

// done records a reading that has succeeded, and schedules the next one so that readings take at most one part in share of a
// processor.
func (s *schedule) done(period, cpu time.Duration, share int) {
	s.interval = max(period, time.Duration(share)*cpu)
	s.lastAt = time.Now()
	s.nextAt = s.lastAt.Add(s.interval)
}

// mayInterrupt reports whether a count gives way to programming. One that would be too late does not.
func (s *schedule) mayInterrupt() bool { return time.Since(s.lastAt) < staleIntervals*s.interval }

// readSignals starts the readings that are due, and returns when the next one is, zero if that follows from another step. There
// is none before the data plane is programmed, nor while it is not in line with the plan.
func (e *Engine) readSignals(ctx context.Context) time.Time {
	if e.SignalsPeriod <= 0 || e.Once || !e.sync.done || e.sync.full {
		return time.Time{}
	}
	return earliest(e.readOutcomes(ctx), e.countConnections(ctx))
}

// readOutcomes starts a reading of outcomes if it is due. It returns when the next one is.
func (e *Engine) readOutcomes(ctx context.Context) time.Time {
	g, s := &e.signals, &e.signals.outcomes
	counter, ok := e.Backend.(backend.OutcomeCounter)
	if !ok || !e.Backend.Caps().Outcomes || !e.Planner.CountsOutcomes() {
		if s.active {
			e.record(OutcomeReading{Stage: CountingStopped})
		}
		e.stopReading(s, OutcomesRead)
		return time.Time{}
	}
	if g.reading.running {
		return time.Time{}
	}
	if !s.active {
		delay := e.SignalsPeriod
		if reading, _, _ := g.tracker.Last(); reading == 0 {
			delay = 0 // for the base: another process may have counted before
		} else {
			now := e.planNow()
			g.tracker.Update(now, none)
			e.record(OutcomeReading{Stage: CountingBegun, At: now})
		}
		s.begin(e.SignalsPeriod, delay)
	}
	if time.Now().Before(s.nextAt) {
		return s.nextAt
	}
	tracker, clock := g.tracker, e.clock
	g.reading.start(ctx, readTimeout, func(ctx context.Context) func() {
		r := outcomesReading{}
		r.cpu, r.err = e.measure(func() (err error) {
			r.counters, err = counter.ReadOutcomes(ctx)
			return err
		})
		r.omitted = counter.UncountedEndpoints()
		if r.err == nil { // some 10 ms for all endpoints, which are not the loop's
			r.at, _ = clock.now()
			r.prepared = tracker.Prepare(r.at, countersOf(r.counters))
		}
		return func() { e.outcomesRead(&r) }
	})
	return time.Time{}
}

// outcomesReading is the result of a reading of outcomes.
type outcomesReading struct {
	counters map[model.EndpointKey]backend.OutcomeCounters
	omitted  int
	cpu      time.Duration // that ReadOutcomes took
	err      error
	at       time.Time         // by the planner's clock
	prepared *outcomes.Reading // for the tracker
}

// measure calls f, and returns the CPU time that it takes.
func (e *Engine) measure(f func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := e.ThreadCPU()
	err := f()
	return max(0, e.ThreadCPU()-before), err
}

func none(func(model.EndpointKey, outcomes.Counters) bool) {}

// planNow returns the time by the planner's clock.
func (e *Engine) planNow() time.Time {
	now, _ := e.clock.now()
	return now
}

// outcomesRead takes a reading of outcomes.
func (e *Engine) outcomesRead(r *outcomesReading) {
	s := &e.signals.outcomes
	if !s.active || e.readFailed(s, OutcomesRead, "reading outcomes of connections failed", r.cpu, r.err) {
		return
	}
	s.done(e.SignalsPeriod, r.cpu, maxReadShare)
	changes := e.signals.tracker.Commit(r.prepared)
	if e.Recorder != nil {
		e.record(OutcomeReading{Stage: CountersRead, At: r.at, Interval: s.interval, Counters: maps.Clone(r.counters)})
	}
	_, at, window := e.signals.tracker.Last()
	e.Planner.AddOutcomes(at, window, changes)
	e.Observer.OnEvent(Event{Kind: OutcomesRead, At: s.lastAt, Duration: r.cpu, Count: len(r.counters), Omitted: r.omitted})
}

func countersOf(all map[model.EndpointKey]backend.OutcomeCounters) iter.Seq2[model.EndpointKey, outcomes.Counters] {
	return func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for k, c := range all {
			if !yield(k, outcomes.Counters(c)) {
				return
			}
		}
	}
}

// readFailed handles the failure of a reading or count, which is repeated after its interval, or after a part of it if it gave
// way to programming: at once, constant changes would make it begin again all the time. It reports whether the reading has
// failed. Repetitions of an error are logged at debug level.
func (e *Engine) readFailed(s *schedule, kind EventKind, msg string, cpu time.Duration, err error) bool {
	switch {
	case err == nil:
		if s.lastError != "" {
			e.Log.Info("counting connections works again")
		}
		s.lastError = ""
		return false
	case errors.Is(err, context.Canceled):
		s.nextAt = time.Now().Add(s.interval / staleIntervals)
		return true
	}
	s.interval = max(s.interval, e.SignalsPeriod, time.Second)
	s.nextAt = time.Now().Add(s.interval)
	e.Observer.OnEvent(Event{Kind: kind, At: time.Now(), Duration: cpu, Err: err})
	level := slog.LevelWarn
	if err.Error() == s.lastError {
		level = slog.LevelDebug
	}
	s.lastError = err.Error()
	e.Log.Log(context.Background(), level, msg+"; plugins are told that these are not known", "err", err, "retry_after", s.interval)
	return true
}

// stopReading ends a schedule whose signal nothing needs any more.
func (e *Engine) stopReading(s *schedule, kind EventKind) {
	if s.active {
		*s = schedule{}
		e.Observer.OnEvent(Event{Kind: kind})
	}
}

// releaseBackend waits until no count uses the backend. It gives way to programming, unless it would be too late.
func (e *Engine) releaseBackend() {
	if g := &e.signals; g.exclusive {
		g.counting.wait(g.connections.mayInterrupt())
	}
}

// rebaseSignals forgets what another backend has counted.
func (e *Engine) rebaseSignals() {
	if reading, _, _ := e.signals.tracker.Last(); reading > 0 {
		e.record(OutcomeReading{Stage: CountersRebased})
	}
	e.signals.tracker = outcomes.NewTracker()
	e.signals.open = outcomes.Open{}
	e.stopReading(&e.signals.outcomes, OutcomesRead)
	e.stopReading(&e.signals.connections, ConnectionsCounted)
}

// stopSignals ends all readings.
func (e *Engine) stopSignals() {
	e.signals.reading.wait(true)
	e.signals.counting.wait(true)
}

// OutcomesWindow implements policy.Signals.
func (g *signals) OutcomesWindow(now time.Time) (uint64, time.Duration) {
	reading, at, window := g.tracker.Last()
	if !g.outcomes.active || window == 0 || now.Sub(at) > staleIntervals*g.outcomes.interval {
		return 0, 0
	}
	return reading, window
}

// Outcomes implements policy.Signals.
func (g *signals) Outcomes(k model.EndpointKey) (abi.Outcomes, uint64) {
	return g.tracker.Outcomes(k)
}
