package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Evaluator evaluates policies. It stores the plugins' answers for each pool and calls a plugin again only when its input has
// changed or its requeue time has passed. It is not safe for concurrent use.
type Evaluator struct {
	// ShouldDefer reports whether a plugin call that is due is deferred until the next Decide for the pool. Nil: never.
	ShouldDefer func() bool

	plugins func(Step) (Plugin, error)
	pools   map[PoolKey]*poolState
	call    pluginCall
}

// NewEvaluator returns an Evaluator without state. plugins returns the current revision of a step's plugin; every decision calls
// it, so it must be cheap.
func NewEvaluator(plugins func(Step) (Plugin, error)) *Evaluator {
	return &Evaluator{plugins: plugins, pools: map[PoolKey]*poolState{}}
}

// PluginCalls returns the number of plugin calls so far.
func (e *Evaluator) PluginCalls() uint64 { return e.call.calls }

// poolState is the state of a PoolKey.
type poolState struct {
	policy     *Policy     // nil after Restore, until the first Decide
	name       string      // of policy
	saved      []savedStep // after Restore, until the first Decide
	times      conditionTimes
	steps      []stepState
	lastGood   *lastGood     // the chain's last answer; nil: none
	digest     requestDigest // of the last request
	generation uint64
}

// Backoff between calls of a plugin that fails on the same input.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Decide returns the decision for a pool, and when to call Decide again (zero: only on a change). Without a policy or without
// eligible endpoints the default rules decide and no plugin is called. now must be by a clock that nobody can set: requests have
// its times, and decisions.
func (e *Evaluator) Decide(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	key := PoolKey{in.Port.Name, in.Port.Family, in.Pool}
	d := Decision{Weights: defaultWeights(in)}
	if p == nil {
		delete(e.pools, key)
		return d, time.Time{}
	}
	d.Policy = p.Name
	m := e.poolFor(key, p)
	m.times.update(in.Port.Endpoints, now)
	if !anyPositive(d.Weights) {
		return d, time.Time{}
	}
	answer, requeueAt, err := e.evaluate(m, in, now, &d)
	switch {
	case err != nil:
		d.Err = fmt.Errorf("policy %s: %s: %w", p.Name, key, err)
		if p.Mode == Enforce && (p.OnFailure == LastGood || errors.Is(err, ErrPending)) {
			if w := m.lastGood.applyTo(in, d.Weights); w != nil {
				d.Weights, d.Origin = w, FromLastGood
				d.ResetAt, d.Balance = m.lastGood.resets(in), m.lastGood.balance
			}
		}
	case p.Mode == Observe:
		d.Observed, d.Origin = answer.weights(in), FromObserve
		m.lastGood = answer
	default:
		d.Weights, d.ResetAt, d.KeepDraining, d.Balance = answer.weights(in), answer.resets(in), answer.draining(in), answer.balance
		d.Origin = FromChain
		m.lastGood = answer
	}
	return d, requeueAt
}

// poolFor returns the state of a pool. When the policy changes, condition times are kept. The last good decision is kept as long as
// the policy keeps its name: it is better than none while the new chain fails.
func (e *Evaluator) poolFor(key PoolKey, p *Policy) *poolState {
	m := e.pools[key]
	switch {
	case m == nil:
		m = &poolState{}
		e.pools[key] = m
	case m.policy != nil && m.policy.equal(p):
		m.policy = p
		return m
	case m.name != p.Name:
		m.lastGood = nil
	}
	m.policy, m.name, m.steps = p, p.Name, make([]stepState, len(p.Steps))
	for i, s := range p.Steps {
		if i < len(m.saved) && m.saved[i].Plugin == s.Plugin && m.saved[i].Settings == s.Settings {
			m.steps[i].state = m.saved[i].State
		}
	}
	m.saved = nil
	return m
}

// Delete deletes the state of a Service port.
func (e *Evaluator) Delete(p model.PortName) {
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		delete(e.pools, PoolKey{p, f, abi.PoolCluster})
		delete(e.pools, PoolKey{p, f, abi.PoolLocal})
	}
}

// defaultWeights returns the weights of the default rules: 1 for each chosen endpoint.
func defaultWeights(in *Input) []uint16 {
	w := make([]uint16, len(in.Port.Endpoints))
	for i := range in.Port.Endpoints {
		if chosen(in, i) {
			w[i] = 1
		}
	}
	return w
}

func chosen(in *Input, i int) bool {
	if in.Pool == abi.PoolLocal {
		return in.Port.Endpoints[i].InLocal
	}
	return in.Port.Endpoints[i].InCluster
}

func anyPositive(weights []uint16) bool {
	return slices.ContainsFunc(weights, func(w uint16) bool { return w > 0 })
}
