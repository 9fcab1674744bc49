package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// chains runs the plugins of chains, from call to call.
//
// A chain awaits at most one run, and each run that is awaited has one Call with whoever makes calls, or its answer.
type chains struct {
	requests
	calls
	serviceSettings
	answers  uint64 // of calls so far
	counters counters
	parts    []float64 // reused by combine
	weights  []uint16  // reused by combine
}

// pass is which part of a decision is made.
type pass uint8

const (
	whole    pass = iota
	asking        // what is asked is decided in the pass that follows
	resuming      // the input is that of the pass before
)

// evaluate returns the answer of a chain for an input and when to evaluate it again (zero: only on a change, or when Answer
// reports it), or an error that wraps ErrPending while the answer is not available: errAsked itself in the pass that asks.
//
// A chain awaits one run at a time. The run for a newer input supersedes it only as long as none of its calls has begun. A pool
// that changes faster than its plugins answer gets every answer that way, applied by address, instead of none.
func (e *chains) evaluate(ch *chain, times *conditionTimes, in *Input, now time.Time, d *Evaluation, of pass) (*lastGood, time.Time, error) {
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
	requeueAt := ch.untilRead(err, ch.requeueAt(c.run.index))
	if err != nil {
		failed := ch.failed(c.run.index, err)
		d.Steps = append(d.Steps, failed)
		return nil, requeueAt, failed.Err
	}
	e.answered(ch, c)
	return e.combine(ch, &c.Request, times.addrs), requeueAt, nil
}

// next returns a call with the request for the first plugin of a run for an input, nil if the chain awaits a run for that, or one
// that has begun.
func (e *chains) next(ch *chain, times *conditionTimes, in *Input, now time.Time) *Call {
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
		digest: digest, nodesUnknown: in.NodesUnknown, unread: ch.unread(in, c.keys, now.UnixMilli()), outcomes: outcomes,
	}
	return c
}

// resume continues the awaited chain after an answer. If that completes the chain, its answer becomes the last good decision:
// the chain of the current input may have to wait.
func (e *chains) resume(ch *chain, times *conditionTimes, c *Call, nowMS int64) {
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
func (e *chains) ended(ch *chain, c *Call) {
	if ch.awaited == c.run {
		ch.awaited = nil
	}
	e.stopWaiting(ch)
}

// answered records that all plugins of a chain have answered.
func (e *chains) answered(ch *chain, c *Call) {
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

// pending completes a decision that waits for plugin number index. While the chain was failing before, it still counts as
// failing.
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
func (e *chains) stepResults(ch *chain, n int, in *Input) (out []StepResult) {
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

// run asks the plugins of a chain whose input has changed or whose requeue time has passed, beginning with number index, until
// one has to answer first: the error is errAsked then, and the chain awaits it. With an error, index is the plugin that failed or
// has not answered.
func (e *chains) run(ch *chain, c *Call, nowMS int64) error {
	for ; c.run.index < len(ch.steps); c.run.index++ {
		s := &ch.steps[c.run.index]
		if err := e.runStep(ch, s, c, nowMS); err != nil {
			return err
		}
		c.Request.Apply(c.run.role, s.results.answer)
	}
	return nil
}

// runStep records the answer of a plugin, or asks it if that is due, and returns the error of its last call.
func (e *chains) runStep(ch *chain, s *stepState, c *Call, nowMS int64) error {
	if c.run.answer != nil {
		c.run.answer = nil
		return e.record(ch, s, c, nowMS)
	}
	step := &ch.plugins()[c.run.index]
	plugin, err := e.plugins(step.Plugin)
	needs := uint32(0)
	if err == nil {
		needs = plugin.Needs(step.Configured())
		err = c.run.order(plugin.Role(), ch.plugins())
	}
	if c.run.nodesUnknown && needs&abi.NeedNodes != 0 {
		err = errNodesUnknown
	}
	if err == nil && len(c.run.unread) > 0 &&
		slices.ContainsFunc(plugin.Keys(step.Configured()), func(k string) bool { return slices.Contains(c.run.unread, k) }) {
		err = errValuesUnknown
	}
	if err != nil {
		s.digest, s.requeueAt = requestDigest{}, 0 // call the plugin as soon as it is available
		return err
	}
	digest := e.digester.step(c.run.digest, plugin.Revision(), step.Settings, &c.Request)
	if !s.due(digest, nowMS, needs, c.run.outcomes) {
		return s.err
	}
	c.run.stepDigest = digest
	c.Name, c.Plugin, c.Err = step.Plugin, plugin, nil
	c.Request.Settings = step.settings()
	c.Request.Settings.Answered = s.answeredAt != 0 && s.answeredBy == plugin.Revision()
	c.state = append(c.state[:0], s.state...)
	c.Request.State = c.state
	c.Request.EndpointStates = nil
	if needs&abi.NeedEndpointState != 0 {
		c.endpointStates = s.endpoints.unpack(c.endpointStates, c.Request.Endpoints)
		c.Request.EndpointStates = c.endpointStates
	}
	c.Response.Reset(len(c.Request.Endpoints))
	e.ask(ch, c)
	return errAsked
}

// ask makes the chain wait for a call. If it waits for another plugin, that is asked no more.
func (e *chains) ask(ch *chain, c *Call) {
	c.run.key, c.run.plugin, c.run.chain, c.run.of = c.Key, c.Name, ch, &ch.steps[0]
	if a := ch.awaited; a != nil && a.plugin != c.Name {
		e.withdraw(a)
	}
	ch.awaited = c.run
	e.add(c)
}

// record records the answer of a call, or its error and when to retry.
func (e *chains) record(ch *chain, s *stepState, c *Call, nowMS int64) error {
	e.answers++
	err, resp := c.Err, &c.Response
	if errors.Is(err, ErrPending) {
		return err
	}
	if errors.Is(err, abi.ErrSettings) && !ch.shadow {
		e.settingsRefused(c.Key.Port.Service, ch.policy, &ch.plugins()[c.run.index], c.Plugin, err)
	}
	s.digest, s.reading = c.run.stepDigest, c.run.outcomes.reading
	if err == nil {
		err = c.Check(c.run.role)
	}
	if s.err = err; err != nil {
		var retry RetryError
		if errors.As(err, &retry) && retry.Retry() > 0 {
			s.backoff = max(minBackoff, retry.Retry())
		} else {
			s.backoff = min(max(minBackoff, 2*s.backoff), maxBackoff)
		}
		s.requeueAt = nowMS + s.backoff.Milliseconds()
		return err
	}
	s.backoff, s.answeredAt, s.answeredBy, s.requeueAt = 0, c.Request.Now, c.Plugin.Revision(), 0
	if resp.RequeueAfter > 0 {
		// RequeueAfter counts from Request.Now, a whole second. More than one call a second would be useless: a plugin sees no
		// smaller unit of time.
		s.requeueAt = c.Request.Now + max(resp.RequeueAfter, time.Second).Milliseconds()
	}
	s.results = packResults(resp)
	s.balance = resp.Balance
	s.state = append(s.state[:0], resp.State...)
	needs := c.Plugin.Needs(ch.plugins()[c.run.index].Configured())
	s.endpoints = endpointStates{}
	if needs&abi.NeedEndpointState != 0 {
		s.endpoints = packEndpointStates(c.Request.Endpoints, resp.EndpointStates)
	}
	s.told = newTold(&c.Request, needs)
	e.counters.add(ch.policy.Name, c.Name, c.Plugin.Counters(), &resp.Counters)
	return nil
}

// use makes the chain that of a policy. If its steps change, the states of plugins whose settings stay the same are kept. The
// last good decision is kept as long as the policy keeps its name: it is better than none while the new chain fails.
func (e *chains) use(ch *chain, p *Policy, renamed bool) {
	before := ch.policy
	if renamed {
		ch.lastGood = nil
	} else if before != nil && equalSteps(ch.of(before), ch.of(p)) {
		ch.policy = p
		return
	}
	if before != nil && !renamed {
		ch.saved = ch.saveSteps()
	}
	steps := ch.of(p)
	e.stopWaiting(ch)
	ch.policy, ch.steps, ch.failure = p, make([]stepState, len(steps)), nil
	for i, s := range steps {
		if i < len(ch.saved) && ch.saved[i].Plugin == s.Plugin && ch.saved[i].Settings == s.Settings {
			ch.steps[i].state, ch.steps[i].endpoints = ch.saved[i].State, restoreEndpointStates(ch.saved[i].Endpoints)
		}
	}
}

// stopWaiting forgets the run that the chain awaits.
func (e *chains) stopWaiting(ch *chain) {
	if ch.awaited != nil {
		e.withdraw(ch.awaited)
	}
	ch.awaited, ch.pendingSince = nil, 0
}

// Backoff between calls of a plugin that fails on the same input.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)
