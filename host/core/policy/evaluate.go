package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// pass is which part of a decision is made.
type pass uint8

const (
	whole    pass = iota
	asking        // what is asked is decided in the pass that follows
	resuming      // the input is that of the pass before
)

// evaluate returns the answer of a chain for an input and when to evaluate it again (zero: only on a change, or when Answer reports it), or
// an error that wraps ErrPending while the answer is not available: errAsked itself in the pass that asks.
//
// A chain awaits one run at a time. The run for a newer input supersedes it only as long as none of its calls has begun. A pool
// that changes faster than its plugins answer gets every answer that way, applied by address, instead of none.
func (e *Evaluator) evaluate(ch *chain, times *conditionTimes, in *Input, now time.Time, d *Evaluation, of pass) (*lastGood, time.Time, error) {
	nowMS := now.UnixMilli()
	var c *Call
	switch a := ch.awaited; {
	case a == nil || a.again:
	case a.answer != nil && of == resuming && a.digest == ch.digest:
		c = a.answer
	case a.answer != nil:
		e.resume(ch, times, a.answer, nowMS)
	case of == resuming:
		return nil, time.Time{}, ch.pending(d, a.index, now, errAsked)
	}
	if c == nil {
		if c = e.next(ch, times, in, now); c == nil {
			return nil, time.Time{}, ch.pending(d, ch.awaited.index, now, errAsked)
		}
	}
	err := e.run(ch, c, nowMS)
	switch {
	case !errors.Is(err, errAsked):
	case of == asking || of == resuming:
		return nil, time.Time{}, errAsked
	default:
		return nil, time.Time{}, ch.pending(d, c.run.index, now, err)
	}
	d.Steps = e.stepResults(ch, c.run.index, in)
	e.ended(ch, c)
	defer e.release(c)
	requeueAt := ch.untilPods(err, ch.requeueAt(c.run.index))
	if err != nil {
		failed := ch.failed(c.run.index, err)
		d.Steps = append(d.Steps, failed)
		return nil, requeueAt, failed.Err
	}
	e.answered(ch, c)
	return e.combine(ch, &c.Request, times.addrs), requeueAt, nil
}

// next returns a call with the request for the first plugin of a run for an input, nil if the chain awaits a run for that, or one that has
// begun.
func (e *Evaluator) next(ch *chain, times *conditionTimes, in *Input, now time.Time) *Call {
	c := e.newCall(len(in.Port.Endpoints))
	outcomes := e.build(c, ch, times, in, now)
	digest := e.digester.request(&c.Request)
	if digest != ch.digest {
		ch.digest = digest
		ch.generation++
	}
	if a := ch.awaited; a != nil && !a.again && (a.index > 0 || a.digest == digest) {
		e.release(c)
		return nil
	}
	c.Request.Generation, c.Shadow = ch.generation, ch.shadow
	*c.run = chainRun{
		digest: digest, nodesUnknown: in.NodesUnknown, podsUnknown: ch.waitForPods(in, c.keys, now.UnixMilli()), outcomes: outcomes,
	}
	return c
}

// resume continues the awaited chain after an answer. If that completes the chain, its answer becomes the last good decision:
// the chain of the current input may have to wait.
func (e *Evaluator) resume(ch *chain, times *conditionTimes, c *Call, nowMS int64) {
	err := e.run(ch, c, nowMS)
	switch {
	case errors.Is(err, errAsked):
		return
	case err == nil:
		e.answered(ch, c)
		ch.lastGood = e.combine(ch, &c.Request, times.addrs)
	default:
		ch.failed(c.run.index, err)
	}
	e.ended(ch, c)
	e.release(c)
}

// ended records that the chain waits for nothing after a run. What it has awaited for another input is obsolete.
func (e *Evaluator) ended(ch *chain, c *Call) {
	if ch.awaited == c.run {
		ch.awaited = nil
	}
	e.stopWaiting(ch)
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

// stepResults returns the last answers of the first n plugins for the endpoints of in.
func (e *Evaluator) stepResults(ch *chain, n int, in *Input) (out []StepResult) {
	for k := range ch.steps[:n] {
		s, r := &ch.steps[k], StepResult{Plugin: ch.plugins()[k].Plugin}
		if plugin, err := e.plugins(r.Plugin); err == nil {
			r.Role = plugin.Role()
		}
		if r.Answer, r.Reasons = s.results.answer, s.results.reasons; len(r.Answer.Values) != len(in.Port.Endpoints) { // the request had local ones only
			n := len(in.Port.Endpoints)
			all, reasons, j := abi.Answer{Values: make([]uint32, n), Group: make([]uint16, n), Groups: r.Answer.Groups}, make([]string, n), 0
			for i := range in.Port.Endpoints {
				if !in.Port.Endpoints[i].Local {
					continue
				}
				if all.Values[i], reasons[i] = r.Answer.Values[j], r.Reasons.At(j); r.Answer.Group != nil {
					all.Group[i] = r.Answer.Group[j]
				}
				j++
			}
			r.Answer, r.Reasons = all, PackReasons(n, func(i int) string { return reasons[i] })
		}
		out = append(out, r)
	}
	return out
}
