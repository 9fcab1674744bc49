package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Options is what an engine runs on. ConnTable may be nil: then no connection is ever reset.
type Options struct {
	Source    Source
	Backend   backend.Backend
	Planner   *plan.Planner
	ConnTable ConnTable
	Log       *slog.Logger
	// Checkpoint keeps what must survive a restart; nil: nothing does.
	Checkpoint Checkpoint
	Observer   Observer // may be nil
	// PluginsReady, when set, is closed once plugins can be asked. A restart, which is a start with a checkpoint that can be
	// used, waits for it, a second at most: a first start does not.
	PluginsReady <-chan struct{}
	// MinSyncPeriod is the least time between the starts of two steps: a burst that lasts longer is taken in pieces. 0: each
	// change at once.
	MinSyncPeriod time.Duration
	// SyncPeriod is how often to look whether the backend has missed that somebody else wrote; 0: never.
	SyncPeriod time.Duration
	// Once: Run returns when the first whole state is in the data plane and settled.
	Once bool
}

// Engine keeps the data plane at the plan.
type Engine struct {
	Options
	mail     *mailbox
	calls    chan func(*plan.Planner)
	swaps    chan *swap
	done     chan struct{} // closed when Run returns
	whole    bool          // the next Apply has to find out itself what differs
	applied  bool          // the whole state has been in the data plane
	retry    time.Duration // back-off in force, 0 when the last Apply went well
	retryAt  time.Time
	stuck    int       // so many frontends are not as planned, as in Stuck
	said     string    // the last failure that was logged as one
	againAt  time.Time // when the backend asked for another Apply
	degraded map[plan.Key][]plan.Degradation
	memory   memory
	notYet   time.Time // no step before this time
	readyBy  time.Time // how long the first step waits for Ready
	askUntil time.Time // no plugin is asked after this time, in this step; zero: none has been
	stale    map[plan.Key]plan.Stale
	staleAt  time.Time // when to try again to forget stale flows
	drift    drift
}

// maxErrors is how many failures of policies a step tells one by one: a plugin that fails does so for all its Services.
const maxErrors = 5

// askFor is how long a step asks plugins before it programs what it has and looks for changes: slow plugins of many
// Services never make another Service wait longer than this and one call.
const askFor = 50 * time.Millisecond

// Back-off after a failed Apply.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// housekeeping is from how long on the other Apply that a backend asks for looks after what only time ends, such as the
// connections of a member that has left; Once does not wait for it.
const housekeeping = 30 * time.Second

// New makes an engine; Run starts it.
func New(o Options) *Engine {
	if o.Observer == nil {
		o.Observer = Observers{}
	}
	e := &Engine{
		Options:  o,
		mail:     newMailbox(o.Observer),
		calls:    make(chan func(*plan.Planner)),
		swaps:    make(chan *swap),
		done:     make(chan struct{}),
		whole:    true,
		degraded: map[plan.Key][]plan.Degradation{},
		stale:    map[plan.Key]plan.Stale{},
		drift:    drift{ready: make(chan struct{}, 1)},
	}
	o.Planner.Limit(func() bool {
		now := time.Now()
		if e.askUntil.IsZero() { // from the first question on, so that there is one in each step
			e.askUntil = now.Add(askFor)
		}
		return now.After(e.askUntil)
	})
	return e
}

// Run goes on until ctx ends or the source fails. The data plane is left as it is, and forwards on.
func (e *Engine) Run(ctx context.Context) error {
	defer close(e.done)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- e.Source.Run(ctx, e.mail.put) }()
	defer func() {
		stop()
		if ended != nil {
			<-ended
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	if e.restore() {
		e.readyBy = time.Now().Add(patience)
	}
	defer e.save(time.Time{})
	check, unwatch := e.watch()
	defer func() { unwatch() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			ended = nil
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the source of cluster state ended: %w", errors.Join(err, errEnded(err)))
		case <-e.mail.ready: // sync takes what is there
		case <-e.PluginsReady:
		case call := <-e.calls:
			call(e.Planner)
		case s := <-e.swaps:
			unwatch() // what the other one writes is nobody else's
			e.swap(ctx, s)
			check, unwatch = e.watch()
			close(s.done)
		case <-e.drift.ready:
		case <-check:
			e.moved(ctx)
		case <-timer.C:
		}
		wake := e.sync(ctx)
		settled := e.againAt.IsZero() || time.Until(e.againAt) >= housekeeping
		if e.Once && e.applied && e.retry == 0 && settled && !due(wake) {
			return nil
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, time.Until(wake)))
		}
	}
}

func errEnded(err error) error {
	if err == nil {
		return errors.New("it returned without an error")
	}
	return nil
}

// Do runs f between two steps of the loop, with the planner to itself, and plans again after it. It returns early
// when ctx or the engine ends.
func (e *Engine) Do(ctx context.Context, f func(*plan.Planner)) error {
	finished := make(chan struct{})
	call := func(p *plan.Planner) {
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
		return errors.New("the engine has stopped")
	}
}

// sync brings plan and data plane up to date and gives the time of the next step, zero for none.
func (e *Engine) sync(ctx context.Context) time.Time {
	now := time.Now()
	if wait := e.waits(now); !wait.IsZero() {
		return wait
	}
	repair, repairAt := e.repair(now)
	if now.Before(e.notYet) && !repair {
		return earliest(e.notYet, repairAt)
	}
	e.notYet, e.askUntil = now.Add(e.MinSyncPeriod), time.Time{}
	e.Planner.Apply(e.mail.take())
	step := e.Planner.Plan(now)
	if step.Left > 0 {
		e.notYet = time.Time{} // the next step goes on with this one
	}
	for i, err := range step.Errors {
		if i == maxErrors {
			e.Log.Error("more policies failed; sluice explain says which", "services", len(step.Errors)-i)
			break
		}
		e.Log.Error("a policy failed; the last good or the default decision holds", "err", err)
	}
	for _, w := range step.Warnings {
		e.Log.Warn("the plan lacks something", "what", w)
	}
	if !e.Planner.Synced() {
		return repairAt
	}
	took := time.Since(now)
	e.degradations(step.Delta)
	e.Observer.OnPlan(&PlannedStep{At: now, Duration: took, Step: &step, Degraded: len(e.degraded)})
	did := e.apply(ctx, step.Delta, now)
	did.At, did.Synced, did.Unprogrammed = time.Now(), !e.whole, e.stuck
	if repair {
		e.drift.next = did.At.Add(max(repairPause, 10*did.Duration))
	}
	e.Observer.OnApply(&did)
	if step.Left > 0 {
		e.Planner.Pace(did.At.Sub(now))
	}
	e.reset(ctx, step.Resets)
	e.forget(ctx, step.Stale)
	e.memory.touched = e.memory.touched || step.Planned > 0
	return earliest(step.Wake, e.retryAt, e.againAt, e.staleAt, repairAt, e.save(now))
}

// apply hands a delta to the backend; after a failure, the whole plan, when its time has come.
func (e *Engine) apply(ctx context.Context, d *plan.Delta, now time.Time) (did ApplyResult) {
	retry := e.stuck > 0 && !now.Before(e.retryAt)
	switch {
	case e.whole && e.stuck == 0 && now.Before(e.retryAt): // what is stuck keeps no repair waiting
		return did
	case !e.whole && d.Empty() && !retry && (e.againAt.IsZero() || now.Before(e.againAt)):
		return did
	case e.whole:
		d = nil
	}
	begin := time.Now()
	report, err := e.Backend.Apply(ctx, e.Planner.Current(), d)
	did = ApplyResult{Attempted: err == nil || ctx.Err() == nil, FullSync: e.whole, Cleanup: d != nil && d.Empty() && !retry,
		Duration: time.Since(begin), Report: report, Err: err}
	e.againAt = time.Time{}
	if report.RequeueAfter > 0 {
		e.againAt = time.Now().Add(report.RequeueAfter)
	}
	var stuck *backend.PartialError
	if err != nil && !errors.As(err, &stuck) {
		e.whole, e.stuck, e.againAt = true, 0, time.Time{}
		e.failed(ctx, "programming the data plane failed; what was there forwards on", err)
		return did
	}
	if stuck == nil {
		e.retry, e.retryAt, e.stuck, e.said = 0, time.Time{}, 0, ""
	} else if before := e.stuck; stuck.Retried || retry || e.retry == 0 {
		if e.stuck = stuck.Frontends; e.stuck < before {
			e.retry = 0 // it helps: on with the others
		}
		e.failed(ctx, "some frontends cannot be programmed; the others are", err)
	} else {
		e.stuck, did.Err = stuck.Frontends, nil // it has been told
	}
	took := time.Since(now)
	switch {
	case e.whole && stuck == nil:
		e.Log.Info("the data plane holds the plan", "frontends", len(e.Planner.Current().Frontends),
			"messages", report.Messages, "took", took)
	case !e.whole && !d.Empty():
		e.Log.Info("changed", "services", owners(d), "frontends", len(d.Changes), "messages", report.Messages, "took", took)
	case retry && stuck == nil:
		e.Log.Info("the frontends that could not be programmed are", "messages", report.Messages)
	}
	e.whole, e.applied = false, true
	return did
}

// failed has it tried again later. The same failure is an error in the log once, until something else happens.
func (e *Engine) failed(ctx context.Context, what string, err error) {
	e.retry = min(max(firstRetry, 2*e.retry), lastRetry)
	e.retryAt = time.Now().Add(e.retry)
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if err.Error() == e.said {
		level = slog.LevelDebug
	}
	e.said = err.Error()
	e.Log.Log(ctx, level, what, "err", err, "retry", e.retry)
}

// owners names the Services of a delta, a few of them.
func owners(d *plan.Delta) string {
	const few = 3
	seen := map[model.Name]bool{}
	var names []string
	for _, c := range d.Changes {
		f := c.New
		if f == nil {
			f = c.Old
		}
		if n := f.Owner.Service; !seen[n] {
			if seen[n] = true; len(seen) <= few {
				names = append(names, n.String())
			}
		}
	}
	text := strings.Join(names, ",")
	if more := len(seen) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// degradations reports what the backend cannot hold of the frontends that changed.
func (e *Engine) degradations(d *plan.Delta) {
	caps := e.Backend.Caps()
	for _, c := range d.Changes {
		if c.New == nil {
			delete(e.degraded, c.Key)
			continue
		}
		_, lost := plan.NormalizeFrontend(c.New, caps)
		for _, l := range lost {
			if !contains(e.degraded[c.Key], l) {
				e.Log.Warn("the data plane cannot hold this", "frontend", l.Frontend, "service", l.Owner,
					"wanted", l.Wanted, "got", l.Got, "why", l.Why)
			}
		}
		if len(lost) > 0 {
			e.degraded[c.Key] = lost
		} else {
			delete(e.degraded, c.Key)
		}
	}
}

func contains(all []plan.Degradation, d plan.Degradation) bool {
	for _, x := range all {
		if x == d {
			return true
		}
	}
	return false
}

// reset ends connections whose time has come. It comes after apply, so that what reconnects finds the new weights.
func (e *Engine) reset(ctx context.Context, resets []plan.Reset) {
	if e.ConnTable == nil || len(resets) == 0 {
		return
	}
	begin := time.Now()
	n, err := e.ConnTable.Reset(ctx, resets)
	e.Observer.OnEvent(Event{Kind: ConnectionsReset, At: begin, Duration: time.Since(begin), Count: n, Err: err})
	if err != nil {
		e.Log.Error("resetting connections failed", "members", len(resets), "first", resets[0].Member, "err", err)
		return
	}
	e.Log.Info("connections reset", "members", len(resets), "first", resets[0].Member, "connections", n)
}

// forget has the kernel forget stale UDP flows, once the plan that they are stale under is in the data plane.
func (e *Engine) forget(ctx context.Context, more []plan.Stale) {
	for _, s := range more {
		e.stale[s.Frontend] = s
	}
	e.staleAt = time.Time{}
	if e.ConnTable == nil || e.whole || len(e.stale) == 0 {
		return
	}
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		e.forgetFamily(ctx, f)
	}
}

func (e *Engine) forgetFamily(ctx context.Context, f model.Family) {
	var list []plan.Stale
	for _, s := range e.stale {
		if s.Frontend.Family() == f {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b plan.Stale) int { return a.Frontend.Compare(b.Frontend) })
	begin := time.Now()
	n, err := e.ConnTable.DeleteStaleUDP(ctx, list, e.Planner.Current().Global.NodePortAddrs)
	e.Observer.OnEvent(Event{Kind: StaleFlowsDeleted, Family: f, At: begin, Duration: time.Since(begin), Count: n, Err: err})
	if err != nil {
		if ctx.Err() == nil {
			e.staleAt = time.Now().Add(lastRetry)
			e.Log.Error("forgetting stale UDP flows failed", "family", f, "err", err, "retry", lastRetry)
		}
		return
	}
	for _, s := range list {
		delete(e.stale, s.Frontend)
	}
	if n > 0 {
		e.Log.Info("stale UDP flows forgotten", "family", f, "flows", n)
	}
}

// due tells whether a time has come; none never does.
func due(t time.Time) bool { return !t.IsZero() && time.Until(t) <= 0 }

func earliest(times ...time.Time) time.Time {
	var first time.Time
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
