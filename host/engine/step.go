package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// maxLoggedErrors bounds the policy errors that one step logs one by one: a failing plugin fails for all its Services.
const maxLoggedErrors = 5

// maxReportedFailures bounds the frontends that one step reports as not programmed.
const maxReportedFailures = 20

// step brings plan and data plane up to date. It sets planAt, and returns when the next step is due for other reasons, zero if
// only on a change.
func (e *Engine) step(ctx context.Context) time.Time {
	now, cpu := time.Now(), e.ThreadCPU()
	e.planAt = time.Time{}
	if until := e.startupDelay(now); !until.IsZero() {
		return until
	}
	repair, repairAt := e.repair(now)
	if now.Before(e.nextStep) && !repair {
		return earliest(e.nextStep, repairAt)
	}
	e.nextStep = now.Add(e.MinSyncPeriod)
	limit := maxIntake
	if !e.Planner.Synced() {
		limit = math.MaxInt // until the first plan, all
	}
	changes, left := e.queue.take(limit, e.Planner.ServiceOf)
	e.updates.received(changes)
	e.Planner.Apply(changes)
	if !e.Planner.Synced() {
		if e.Recorder != nil {
			e.Recorder.OnChanges(time.Time{}, changes)
		}
		return repairAt // the planner's clock starts with the first plan
	}
	planTime := e.planTime()
	if e.Recorder != nil && len(changes) > 0 {
		e.Recorder.OnChanges(planTime, changes)
	}
	step := e.plan(planTime)
	if left > 0 {
		step.Remaining, step.RequeueAt = step.Remaining+left, planTime
	}
	e.planAt = step.RequeueAt
	if step.Remaining > 0 {
		e.nextStep = time.Time{} // continue at once
	}
	e.logProblems(&step, now)
	took := time.Since(now)
	e.countDegraded(step.Delta)
	e.Observer.OnPlan(&PlannedStep{At: now, Duration: took, Result: &step, Degraded: e.degraded})
	e.stale.renew(step.Delta)
	r := e.apply(ctx, step.Delta, now)
	r.At, r.Synced, r.Unprogrammed = time.Now(), !e.sync.full, e.sync.unprogrammed
	if repair {
		e.drift.nextRepair = r.At.Add(min(max(minRepairInterval, 10*r.Duration), maxRepairInterval))
	}
	e.Observer.OnApply(&r)
	e.Planner.AdaptStep(e.stepTime(r.At.Sub(now), cpu))
	// Connections end after the new rules are in place, so that reconnecting clients find these.
	e.reset(ctx, step.Resets)
	e.stale.add(e.Planner.Current(), &step, e.Backend)
	e.unreplied.addLost(step.Delta, r.At)
	e.shed(ctx)
	e.checkpoint.dirty = e.checkpoint.dirty || step.Planned > 0
	return earliest(e.sync.retryAt, e.sync.requeueAt, e.deleteStaleUDP(ctx), e.deleteUnreplied(ctx), repairAt, e.save(now), e.readSignals(ctx), e.updates.summarize(e.Log, time.Now()))
}

// stepTime returns how long a step has taken, without the time for which it waited for a processor: smaller steps would wait as
// long. begin is the CPU time of the thread at its beginning; the loop may have changed threads since.
func (e *Engine) stepTime(took, begin time.Duration) time.Duration {
	if used := e.ThreadCPU() - begin; used > 0 {
		return min(took, used)
	}
	return took
}

// plan plans with the answers of plugins that are there or come soon.
func (e *Engine) plan(now time.Time) planner.Result {
	if e.Plugins == nil {
		return e.Planner.PlanNow(now)
	}
	wait := answerWait
	if !e.sync.done {
		wait = firstAnswerWait
	}
	e.Planner.Deliver(e.Plugins.Call(nil, 0), now)
	for {
		step := e.Planner.Plan(now)
		if len(step.Calls) == 0 {
			return step
		}
		begin := time.Now()
		e.Planner.Deliver(e.Plugins.Call(step.Calls, wait), now)
		wait -= time.Since(begin)
	}
}

func (e *Engine) logProblems(step *planner.Result, now time.Time) {
	for i, err := range step.Errors {
		if i == maxLoggedErrors {
			e.Log.Error("more policies failed; see sluice explain", "services", len(step.Errors)-i)
			break
		}
		e.Log.Error("policy failed; the last good or the default decision stays in force", "err", err)
	}
	for i, err := range step.ShadowErrors {
		if i == maxLoggedErrors {
			e.Log.Warn("more shadows failed; see sluice explain", "services", len(step.ShadowErrors)-i)
			break
		}
		e.Log.Warn("shadow failed; what is in force does not change", "err", err)
	}
	e.logAnnotations(step, now)
	for i := range step.Guards {
		level := slog.LevelInfo
		if g := &step.Guards[i]; g.Blind || g.Phase == policy.GuardFallenBack {
			level = slog.LevelWarn
		}
		e.Log.Log(context.Background(), level, "guard of a policy", "state", step.Guards[i].Text)
	}
	for _, w := range step.Warnings {
		e.Log.Warn("plan is incomplete", "reason", w)
	}
}

// applyKind is the reason for calling the backend.
type applyKind uint8

const (
	applyNone    applyKind = iota // nothing to do
	applyFull                     // compare the whole plan with the data plane
	applyDelta                    // the plan has changed
	applyRetry                    // retry frontends that could not be programmed, with or without a change
	applyCleanup                  // remove what an earlier Apply left behind
)

func (e *Engine) nextApply(d *plan.Delta, now time.Time) applyKind {
	s := &e.sync
	switch {
	case s.full && s.unprogrammed == 0 && now.Before(s.retryAt): // unprogrammed frontends do not delay a repair
		return applyNone
	case s.full:
		return applyFull
	case s.unprogrammed > 0 && !now.Before(s.retryAt):
		return applyRetry
	case !d.Empty():
		return applyDelta
	case !s.requeueAt.IsZero() && !now.Before(s.requeueAt):
		return applyCleanup
	}
	return applyNone
}

// apply passes a delta to the backend or, at the start and after a failure, the whole plan.
func (e *Engine) apply(ctx context.Context, d *plan.Delta, now time.Time) ApplyResult {
	kind, s := e.nextApply(d, now), &e.sync
	switch kind {
	case applyNone:
		return ApplyResult{}
	case applyFull:
		d = nil
	}
	begin := time.Now()
	e.releaseBackend()
	report, err := e.Backend.Apply(ctx, e.Planner.Current(), d)
	r := ApplyResult{Attempted: err == nil || ctx.Err() == nil, FullSync: kind == applyFull, Cleanup: kind == applyCleanup,
		Duration: time.Since(begin), Report: report, Err: err}
	e.requeue(report)
	var partial *backend.PartialError
	switch {
	case err == nil:
		s.succeeded()
	case !errors.As(err, &partial):
		s.full, s.unprogrammed, s.requeueAt = true, 0, time.Time{}
		e.applyFailed(ctx, "sync failed; the data plane keeps its last state", err)
		return r
	case partial.Retried || kind == applyRetry || s.backoff == 0:
		if partial.Frontends < s.unprogrammed {
			s.backoff = 0 // progress: retry the others soon
		}
		s.unprogrammed = partial.Frontends
		r.NewlyFailed = e.newlyFailed(partial)
		e.applyFailed(ctx, "some frontends cannot be programmed; all others are", err)
	default: // the backend repeats an error that has been logged
		s.unprogrammed, r.Err = partial.Frontends, nil
	}
	s.full, s.done = false, true
	e.logApply(kind, d, &r, time.Since(now))
	return r
}

// newlyFailed returns the first frontends that cannot be programmed and could be before, with their Services.
func (e *Engine) newlyFailed(p *backend.PartialError) (out []*planner.ServiceError) {
	before := e.sync.failed
	e.sync.failed = p.Failed
	for _, k := range slices.SortedFunc(maps.Keys(p.Failed), plan.Key.Compare) {
		f := e.Planner.Current().Frontends[k]
		if f == nil || before[k] != nil {
			continue
		}
		if out = append(out, &planner.ServiceError{Service: f.Owner.Service, Err: p.Failed[k]}); len(out) == maxReportedFailures {
			break
		}
	}
	return out
}

func (e *Engine) logApply(kind applyKind, d *plan.Delta, r *ApplyResult, took time.Duration) {
	partial := e.sync.unprogrammed > 0
	defer func() { e.updates.causes = [len(e.updates.causes)]int{} }()
	switch {
	case kind == applyFull && !partial:
		e.Log.Info("synced all services", "frontends", len(e.Planner.Current().Frontends), "netlink_messages", r.Report.Messages,
			"duration", took)
	case kind != applyFull && !d.Empty():
		e.logUpdate(d, r.Report.Messages, took)
		e.updates.add(len(d.Changes), r.Report.Messages, took, time.Now())
	case kind == applyRetry && !partial:
		e.Log.Info("all frontends are programmed again", "netlink_messages", r.Report.Messages)
	}
}

func (e *Engine) requeue(r backend.Report) {
	e.sync.requeueAt = time.Time{}
	if r.RequeueAfter > 0 {
		e.sync.requeueAt = time.Now().Add(r.RequeueAfter)
	}
}

// applyFailed schedules a retry. Repetitions of an error are logged at debug level.
func (e *Engine) applyFailed(ctx context.Context, msg string, err error) {
	s := &e.sync
	s.backoff = min(max(minBackoff, 2*s.backoff), maxBackoff)
	s.retryAt = time.Now().Add(s.backoff)
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelError
	if err.Error() == s.lastLoggedError {
		level = slog.LevelDebug
	}
	s.lastLoggedError = err.Error()
	e.Log.Log(ctx, level, msg, "err", err, "retry_after", s.backoff)
}

// services names up to three Services of a delta, and how many more there are.
func services(d *plan.Delta) string {
	const limit = 3
	seen := map[model.Name]bool{}
	var names []string
	for _, c := range d.Changes {
		f := c.New
		if f == nil {
			f = c.Old
		}
		if n := f.Owner.Service; !seen[n] {
			if seen[n] = true; len(seen) <= limit {
				names = append(names, n.String())
			}
		}
	}
	text := strings.Join(names, ",")
	if more := len(seen) - limit; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// countDegraded counts the frontends that the backend cannot represent as planned, and logs what it has not lost of them before.
func (e *Engine) countDegraded(d *plan.Delta) {
	for _, c := range d.Changes {
		before, now := c.Old.Degradations(), c.New.Degradations()
		e.degraded += min(1, len(now)) - min(1, len(before))
		for _, l := range now {
			if !slices.Contains(before, l) {
				e.Log.Warn("frontend degraded: the backend cannot represent it as planned", "frontend", l.Frontend, "service", l.Owner,
					"wanted", l.Wanted, "got", l.Got, "reason", l.Why)
			}
		}
	}
}
