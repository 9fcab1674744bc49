package policy

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// evaluate returns the answer of a chain for an input and when to evaluate it again (zero: only on a change, or when
// Deliver reports it), or an error that wraps ErrPending while the answer is not available.
//
// A chain awaits one run at a time. The run for a newer input supersedes it only as long as none of its calls has begun. A pool
// that changes faster than its plugins answer gets every answer that way, applied by address, instead of none.
func (e *Evaluator) evaluate(ch *chain, times *conditionTimes, in *Input, now time.Time, d *Evaluation) (*lastGood, time.Time, error) {
	nowMS := now.UnixMilli()
	if c := ch.awaited; c != nil && (c.run.answered || c.run.unsent != nil) {
		e.resume(ch, times, c, nowMS)
	}
	c := e.newCall(len(in.Port.Endpoints))
	outcomes := e.build(c, ch, times, in, now)
	digest := e.digester.request(&c.Request)
	if digest != ch.digest {
		ch.digest = digest
		ch.generation++
	}
	c.Request.Generation = ch.generation
	if a := ch.awaited; a != nil && (a.run.index > 0 || a.run.digest == digest) {
		e.release(c)
		d.Refused = errors.Is(a.run.unsent, errRefused)
		return nil, time.Time{}, ch.pending(d, a.run.index, now, cmp.Or(a.run.unsent, errQueued))
	}
	c.Shadow = ch.shadow
	c.run = chainRun{
		digest: digest, nodesUnknown: in.NodesUnknown, podsUnknown: ch.waitForPods(in, c.keys, nowMS), outcomes: outcomes,
	}
	err := e.run(ch, c, nowMS, func(s *stepState) {
		d.Steps = append(d.Steps, e.stepResult(ch.plugins()[c.run.index].Plugin, s, in))
	})
	switch {
	case errors.Is(err, errQueued):
		ch.awaited = c
		return nil, time.Time{}, ch.pending(d, c.run.index, now, err)
	case errors.Is(err, errBusy), errors.Is(err, errRefused):
		d.Refused = errors.Is(err, errRefused)
		defer e.release(c)
		return nil, time.Time{}, ch.pending(d, c.run.index, now, err)
	}
	ch.awaited, ch.pendingSince = nil, 0 // an older chain is obsolete
	defer e.release(c)
	requeueAt := ch.untilPods(err, ch.requeueAt(c.run.index))
	if err != nil {
		failed := ch.failed(c.run.index, err)
		d.Steps = append(d.Steps, failed)
		return nil, requeueAt, failed.Err
	}
	e.answered(ch, c)
	return ch.combine(&c.Request, times.addrs), requeueAt, nil
}

// resume continues the awaited chain after an answer. If that completes the chain, its answer becomes the last good decision:
// the chain of the current input may have to wait.
func (e *Evaluator) resume(ch *chain, times *conditionTimes, c *Call, nowMS int64) {
	c.run.unsent = nil
	err := e.run(ch, c, nowMS, func(*stepState) {})
	switch {
	case errors.Is(err, errQueued):
		return
	case errors.Is(err, errBusy), errors.Is(err, errRefused):
		c.run.unsent = err
		return
	case err == nil:
		e.answered(ch, c)
		ch.lastGood = ch.combine(&c.Request, times.addrs)
	default:
		ch.failed(c.run.index, err)
	}
	ch.awaited, ch.pendingSince = nil, 0
	e.release(c)
}

// answered records that all plugins of a chain have answered.
func (e *Evaluator) answered(ch *chain, c *Call) {
	ch.failure, ch.saved = nil, nil
	if !ch.shadow { // which does not decide about the settings of a Service
		e.settingsAnswered(c.Key.Port.Service, ch.policy)
	}
}

// failed returns the result of plugin number index that has failed, and records it unless the plugin is only not available yet.
func (ch *chain) failed(index int, err error) StepResult {
	name := ch.plugins()[index].Plugin
	r := StepResult{Plugin: name, Err: fmt.Errorf("plugin %s: %w", name, err)}
	if !errors.Is(err, ErrPending) {
		ch.failure = &r
	}
	return r
}

// pending completes a decision that waits for plugin number index. While the chain was failing before, it still counts as failing.
func (ch *chain) pending(d *Evaluation, index int, now time.Time, err error) error {
	if ch.pendingSince == 0 {
		ch.pendingSince = now.UnixMilli()
	}
	d.Pending = &Pending{Plugin: ch.plugins()[index].Plugin, Since: ch.pendingSince}
	d.Steps = nil
	if ch.failure != nil {
		d.Steps = []StepResult{*ch.failure}
		return ch.failure.Err
	}
	return fmt.Errorf("plugin %s: %w", d.Pending.Plugin, err)
}

// requeueAt returns the earliest requeue time of the plugins up to number last.
func (ch *chain) requeueAt(last int) time.Time {
	at := int64(0)
	for i := range ch.steps[:min(last+1, len(ch.steps))] {
		if s := &ch.steps[i]; s.requeueAt != 0 && (at == 0 || s.requeueAt < at) {
			at = s.requeueAt
		}
	}
	if at == 0 {
		return time.Time{}
	}
	return time.UnixMilli(at)
}

// stepResult returns a plugin's last answer for the endpoints of in.
func (e *Evaluator) stepResult(name string, s *stepState, in *Input) StepResult {
	n := len(in.Port.Endpoints)
	if len(e.portIndex) == n { // the request has all endpoints
		return StepResult{Plugin: name, Weights: s.results.weights, Reasons: s.results.reasons}
	}
	weights, reasons := make([]uint16, n), make([]string, n)
	for i, w := range s.results.weights {
		weights[e.portIndex[i]], reasons[e.portIndex[i]] = w, s.results.reasons.At(i)
	}
	return StepResult{Plugin: name, Weights: weights, Reasons: PackReasons(n, func(i int) string { return reasons[i] })}
}
