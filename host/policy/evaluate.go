package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// stepState is the state of one plugin in a chain.
type stepState struct {
	digest     requestDigest // of the last request
	results    packedResults
	balance    uint8
	state      []byte
	answeredAt int64         // Request.Now of the last answer, Unix milliseconds
	requeueAt  int64         // call again then, Unix milliseconds; 0: only on a change
	err        error         // of the last call
	backoff    time.Duration // current one, 0 without an error
}

// due reports whether the plugin has to be called at nowMS for a request with this digest.
func (s *stepState) due(digest requestDigest, nowMS int64) bool {
	return s.digest != digest || s.requeueAt != 0 && s.requeueAt <= nowMS
}

// evaluate runs the chain of plugins. A plugin is called only when its input has changed or its requeue time has passed.
func (e *Evaluator) evaluate(m *poolState, in *Input, now time.Time, d *Decision) (*lastGood, time.Time, error) {
	c := &e.call
	c.build(m, in, now, e.needs(m.policy))
	if digest := c.digester.request(&c.req); digest != m.digest {
		m.digest = digest
		m.generation++
	}
	c.req.Generation = m.generation
	requeueAt := int64(0)
	for i := range m.steps {
		s, step := &m.steps[i], m.policy.Steps[i]
		err := e.evaluateStep(m, s, step, in, now)
		if err == errDeferred {
			return nil, now, ErrPending
		}
		if s.requeueAt != 0 && (requeueAt == 0 || s.requeueAt < requeueAt) {
			requeueAt = s.requeueAt
		}
		if err != nil {
			err = fmt.Errorf("plugin %s: %w", step.Plugin, err)
			d.Steps = append(d.Steps, StepResult{Plugin: step.Plugin, Err: err})
			return nil, unixMilli(requeueAt), err
		}
		d.Steps = append(d.Steps, c.applyStep(step.Plugin, s, in))
	}
	return c.combine(m), unixMilli(requeueAt), nil
}

var (
	// errNodesUnknown is the error of a plugin that needs the cluster's Nodes before they are read.
	errNodesUnknown = fmt.Errorf("%w: the cluster's Nodes are not known yet", ErrPending)
	// errDeferred means that a call is due and ShouldDefer has deferred it.
	errDeferred = errors.New("deferred")
)

// evaluateStep calls the plugin of a step if that is due, and returns the error of its last call.
func (e *Evaluator) evaluateStep(m *poolState, s *stepState, step Step, in *Input, now time.Time) error {
	plugin, err := e.plugins(step)
	if err == nil && in.NodesUnknown && plugin.Needs()&abi.NeedNodes != 0 {
		err = errNodesUnknown
	}
	if err != nil {
		s.digest, s.requeueAt = requestDigest{}, 0 // call the plugin as soon as it is available
		return err
	}
	digest := e.call.digester.step(m.digest, plugin.Revision(), e.call.req.Endpoints)
	nowMS := now.UnixMilli()
	if s.due(digest, nowMS) {
		if e.ShouldDefer != nil && e.ShouldDefer() {
			return errDeferred
		}
		s.digest = digest
		e.call.invoke(plugin, s, in, nowMS)
	}
	return s.err
}

func unixMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
