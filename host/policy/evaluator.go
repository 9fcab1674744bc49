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
	// Admit reports whether a new call of a plugin for a Service may be passed to the Caller; otherwise it is refused. Nil: always.
	Admit func(plugin string, service model.Name) bool
	// Signals returns what is known of connections to endpoints. Nil: nothing.
	Signals Signals

	plugins   func(string) (Plugin, error)
	caller    Caller
	pools     map[PoolKey]*poolState
	readiness map[readinessKey]*readiness // of Service ports whose policy has Panic
	settings  map[model.Name]*ownSettings // of the Services that have some
	revisions map[*Policy]cachedRevision
	digester  digester
	portIndex []int   // from the endpoints of the last request that was built to Port.Endpoints
	free      []*Call // for reuse
	calls     uint64  // answered so far
}

// NewEvaluator returns an Evaluator without state. plugins returns the current revision of a plugin by name; every decision calls
// it, so it must be cheap. They are called at once; CallThrough changes that.
func NewEvaluator(plugins func(string) (Plugin, error)) *Evaluator {
	return &Evaluator{plugins: plugins, caller: direct{}, pools: map[PoolKey]*poolState{},
		readiness: map[readinessKey]*readiness{}, settings: map[model.Name]*ownSettings{}, revisions: map[*Policy]cachedRevision{}}
}

// CallThrough makes c call the plugins from now on.
func (e *Evaluator) CallThrough(c Caller) { e.caller = c }

// PluginCalls returns the number of plugin calls that have been answered so far.
func (e *Evaluator) PluginCalls() uint64 { return e.calls }

// Deliver passes the answer of a call that was Queued. It reports whether its pool has to be decided again.
func (e *Evaluator) Deliver(c *Call) bool {
	m := e.pools[c.Key]
	if m == nil {
		return false
	}
	if m.awaited == c {
		c.chain.answered = true
	}
	return true
}

// Awaited returns the number of pools that wait for a plugin. It looks at all pools.
func (e *Evaluator) Awaited() (n int) {
	for _, m := range e.pools {
		if m.pendingSince != 0 {
			n++
		}
	}
	return n
}

// ThrottledSince returns since when the calls of a plugin wait for CPU time, see Caller.
func (e *Evaluator) ThrottledSince(plugin string) time.Time { return e.caller.ThrottledSince(plugin) }

// Room reports whether calls of a plugin for a namespace would be accepted, see Caller.
func (e *Evaluator) Room(plugin, namespace string) bool { return e.caller.Room(plugin, namespace) }

// poolState is the state of a PoolKey.
type poolState struct {
	policy *Policy // nil after Restore, until the first Decide
	name   string  // of policy
	// saved are the plugins' states with the settings that they belong to, after Restore or a change of the policy, until the new
	// chain has answered: while its settings are refused, those before are in force again.
	saved      []savedStep
	times      conditionTimes
	steps      []stepState
	lastGood   *lastGood     // the chain's last answer; nil: none
	digest     requestDigest // of the last request
	generation uint64
	awaited    *Call       // that the evaluation waits for; nil: none
	failure    *StepResult // of the last chain that has ended; nil: it succeeded
	// pendingSince is since when the current input waits for a plugin, Unix milliseconds; 0: it does not.
	pendingSince int64
	// podsSince is since when the Pods that a plugin needs are not read, Unix milliseconds; 0: they are, or none needs them.
	podsSince int64
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
	if p == nil {
		delete(e.pools, PoolKey{in.Port.Name, in.Port.Family, in.Pool})
		return Decision{Weights: defaultWeights(in)}, time.Time{}
	}
	for { // at most three times: with the settings of the Service, the last good ones, those of the policy
		applied := e.Settings(in.Service, p).InForce
		d, at := e.decide(applied, in, now)
		if e.Settings(in.Service, p).InForce == applied {
			return d, at
		}
	}
}

func (e *Evaluator) decide(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	key := PoolKey{in.Port.Name, in.Port.Family, in.Pool}
	d := Decision{Weights: defaultWeights(in)}
	d.Policy = p.Name
	m := e.poolFor(key, p)
	m.times.update(in.Port.Endpoints, now)
	if len(p.Steps) == 0 {
		m.awaited, m.pendingSince, m.lastGood, d.Origin = nil, 0, nil, FromChain
		return d, time.Time{}
	}
	if !anyPositive(d.Weights) {
		m.awaited, m.pendingSince = nil, 0
		return d, time.Time{}
	}
	answer, requeueAt, err := e.evaluate(m, in, now, &d)
	switch {
	case err != nil:
		d.Err = fmt.Errorf("policy %s: %s: %w", p.Name, key, err)
		if p.OnFailure == LastGood || errors.Is(err, ErrPending) {
			m.keepLastGood(in, &d)
		}
	case p.Mode == Observe:
		d.Observed, d.Origin = answer.weights(in), FromObserve
		m.lastGood = answer
	default:
		d.Weights, d.ResetAt, d.KeepDraining, d.Balance = answer.weights(in), answer.resets(in), answer.draining(in), answer.balance
		d.Sheds = answer.shedsOf(in)
		d.Origin = FromChain
		m.lastGood = answer
	}
	return d, requeueAt
}

// keepLastGood applies the last good decision, if there is one, to the current endpoints.
func (m *poolState) keepLastGood(in *Input, d *Decision) {
	w := m.lastGood.applyTo(in, d.Weights)
	switch {
	case w == nil:
	case m.policy.Mode == Observe:
		if d.Pending != nil {
			d.Observed, d.Origin = w, FromObserve
		}
	default:
		d.Weights, d.Origin = w, FromLastGood
		d.ResetAt, d.KeepDraining, d.Balance = m.lastGood.resets(in), m.lastGood.draining(in), m.lastGood.balance
		d.Sheds = m.lastGood.shedsOf(in)
	}
}

// poolFor returns the state of a pool. When the policy changes, condition times are kept, and the states of plugins whose settings stay
// the same. The last good decision is kept as long as the policy keeps its name: it is better than none while the new chain fails.
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
	if m.policy != nil && m.saved == nil && m.name == p.Name {
		m.saved = m.saveSteps()
	}
	m.policy, m.name, m.steps = p, p.Name, make([]stepState, len(p.Steps))
	m.awaited, m.failure, m.pendingSince = nil, nil, 0
	for i, s := range p.Steps {
		if i < len(m.saved) && m.saved[i].Plugin == s.Plugin && m.saved[i].Settings == s.Settings {
			m.steps[i].state = m.saved[i].State
		}
	}
	return m
}

// Delete deletes the state of a Service port.
func (e *Evaluator) Delete(p model.PortName) {
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		e.DeleteFamily(p, f)
	}
}

// DeleteFamily deletes the state of a Service port in a family.
func (e *Evaluator) DeleteFamily(p model.PortName, f model.Family) {
	e.DeletePool(PoolKey{p, f, abi.PoolCluster})
	e.DeletePool(PoolKey{p, f, abi.PoolLocal})
	delete(e.readiness, readinessKey{p, f})
}

// DeletePool deletes the state of a pool.
func (e *Evaluator) DeletePool(k PoolKey) { delete(e.pools, k) }

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
