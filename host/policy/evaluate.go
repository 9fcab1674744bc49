package policy

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// evaluate returns the answer of a pool's chain for an input and when to call Decide again (zero: only on a change, or when
// Deliver reports it), or an error that wraps ErrPending while the answer is not available.
//
// A pool awaits one chain at a time. The chain of a newer input supersedes it only as long as none of its calls has begun. A pool
// that changes faster than its plugins answer gets every answer that way, applied by address, instead of none.
func (e *Evaluator) evaluate(m *poolState, in *Input, now time.Time, d *Decision) (*lastGood, time.Time, error) {
	nowMS := now.UnixMilli()
	if c := m.awaited; c != nil && (c.chain.answered || c.chain.unsent != nil) {
		e.resume(m, c, nowMS)
	}
	c := e.newCall()
	outcomes := e.build(c, m, in, now)
	digest := e.digester.request(&c.Request)
	if digest != m.digest {
		m.digest = digest
		m.generation++
	}
	c.Request.Generation = m.generation
	if a := m.awaited; a != nil && (a.chain.index > 0 || a.chain.digest == digest) {
		e.release(c)
		d.Refused = errors.Is(a.chain.unsent, errRefused)
		return nil, time.Time{}, m.pending(d, a.chain.index, now, cmp.Or(a.chain.unsent, errQueued))
	}
	c.chain = chain{
		digest: digest, nodesUnknown: in.NodesUnknown, podsUnknown: m.waitForPods(in, c.keys, nowMS), outcomes: outcomes,
	}
	err := e.run(m, c, nowMS, func(s *stepState) {
		d.Steps = append(d.Steps, e.stepResult(m.policy.Steps[c.chain.index].Plugin, s, in))
	})
	switch {
	case errors.Is(err, errQueued):
		m.awaited = c
		return nil, time.Time{}, m.pending(d, c.chain.index, now, err)
	case errors.Is(err, errBusy), errors.Is(err, errRefused):
		d.Refused = errors.Is(err, errRefused)
		defer e.release(c)
		return nil, time.Time{}, m.pending(d, c.chain.index, now, err)
	}
	m.awaited, m.pendingSince = nil, 0 // an older chain is obsolete
	defer e.release(c)
	requeueAt := m.untilPods(err, m.requeueAt(c.chain.index))
	if err != nil {
		failed := m.failed(c.chain.index, err)
		d.Steps = append(d.Steps, failed)
		return nil, requeueAt, failed.Err
	}
	e.answered(m, c)
	return m.combine(&c.Request), requeueAt, nil
}

// resume continues the awaited chain after an answer. If that completes the chain, its answer becomes the last good decision:
// the chain of the current input may have to wait.
func (e *Evaluator) resume(m *poolState, c *Call, nowMS int64) {
	c.chain.unsent = nil
	err := e.run(m, c, nowMS, func(*stepState) {})
	switch {
	case errors.Is(err, errQueued):
		return
	case errors.Is(err, errBusy), errors.Is(err, errRefused):
		c.chain.unsent = err
		return
	case err == nil:
		e.answered(m, c)
		m.lastGood = m.combine(&c.Request)
	default:
		m.failed(c.chain.index, err)
	}
	m.awaited, m.pendingSince = nil, 0
	e.release(c)
}

// answered records that all plugins of a chain have answered.
func (e *Evaluator) answered(m *poolState, c *Call) {
	m.failure, m.saved = nil, nil
	e.settingsAnswered(c.Key.Port.Service, m.policy)
}

// failed returns the result of plugin number index that has failed, and records it unless the plugin is only not available yet.
func (m *poolState) failed(index int, err error) StepResult {
	name := m.policy.Steps[index].Plugin
	r := StepResult{Plugin: name, Err: fmt.Errorf("plugin %s: %w", name, err)}
	if !errors.Is(err, ErrPending) {
		m.failure = &r
	}
	return r
}

// pending completes a decision that waits for plugin number index. While the chain was failing before, it still counts as failing.
func (m *poolState) pending(d *Decision, index int, now time.Time, err error) error {
	if m.pendingSince == 0 {
		m.pendingSince = now.UnixMilli()
	}
	d.Pending = &Pending{Plugin: m.policy.Steps[index].Plugin, Since: m.pendingSince}
	d.Steps = nil
	if m.failure != nil {
		d.Steps = []StepResult{*m.failure}
		return m.failure.Err
	}
	return fmt.Errorf("plugin %s: %w", d.Pending.Plugin, err)
}

// requeueAt returns the earliest requeue time of the plugins up to number last.
func (m *poolState) requeueAt(last int) time.Time {
	at := int64(0)
	for i := range m.steps[:min(last+1, len(m.steps))] {
		if s := &m.steps[i]; s.requeueAt != 0 && (at == 0 || s.requeueAt < at) {
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
	r := StepResult{Plugin: name, Weights: s.results.weights, Reasons: make([]string, n)}
	if len(e.portIndex) < n { // otherwise the request has all endpoints
		r.Weights = make([]uint16, n)
	}
	for i, w := range s.results.weights {
		r.Weights[e.portIndex[i]], r.Reasons[e.portIndex[i]] = w, s.results.reasons.At(i)
	}
	return r
}
