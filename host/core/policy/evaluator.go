package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Evaluator evaluates policies. It stores the plugins' answers for each pool and asks a plugin again only when its input has
// changed or its requeue time has passed. It calls no plugin: what it asks is in Calls, and the answers come back through Answer. It is not
// safe for concurrent use.
//
// A chain awaits at most one run, and each run that is awaited has one Call with whoever makes calls, or its answer. Whatever belongs to a
// Service is deleted with it: pools and readiness by port, settings and choices by name.
type Evaluator struct {
	// Signals returns what is known of connections to endpoints. Nil: nothing.
	Signals Signals
	// Guards are the states of the guards of policies, by name. Save and Restore include them.
	Guards map[string]*GuardState
	// Node is what was last known of this node's Node; nil: nothing. Save and Restore include it.
	Node *model.Node

	plugins   func(string) (Plugin, error)
	pools     map[PoolKey]*poolState
	readiness map[readinessKey]*readiness // of Service ports whose policy has Panic
	settings  map[model.Name]*ownSettings // of the Services that have some
	choices   map[model.Name]string       // the policy that the annotation of a Service has chosen last
	revisions map[*Policy]cachedRevision
	digester  digester
	portIndex []int     // from the endpoints of the last request that was built to Port.Endpoints
	free      []*Call   // for reuse
	parts     []float64 // reused by combine
	weights   []uint16  // reused by combine
	// freeEndpoints is the room of these calls.
	freeEndpoints  int
	calls          uint64  // answered so far
	asked          []*Call // since the last Calls
	askedEndpoints int     // of them
}

// NewEvaluator returns an Evaluator without state. plugins returns the current revision of a plugin by name; every decision calls
// it, so it must be cheap.
func NewEvaluator(plugins func(string) (Plugin, error)) *Evaluator {
	return &Evaluator{
		plugins: plugins, pools: map[PoolKey]*poolState{}, readiness: map[readinessKey]*readiness{},
		settings: map[model.Name]*ownSettings{}, choices: map[model.Name]string{}, revisions: map[*Policy]cachedRevision{},
		Guards: map[string]*GuardState{},
	}
}

// PluginCalls returns the number of plugin calls that have been answered so far.
func (e *Evaluator) PluginCalls() uint64 { return e.calls }

// maxAsked and maxAskedEndpoints are from how many calls, or endpoints in their requests, on Calls should be emptied.
const (
	maxAsked          = maxFreeCalls
	maxAskedEndpoints = maxFreeEndpoints
)

// Full reports whether there are so many Calls that their requests take much memory.
func (e *Evaluator) Full() bool {
	return len(e.asked) >= maxAsked || e.askedEndpoints >= maxAskedEndpoints
}

// Calls returns the calls that are to be made since the last time, those of a pool in their order. Their answers are for Answer.
func (e *Evaluator) Calls() []*Call {
	out := e.asked
	e.asked, e.askedEndpoints = nil, 0
	return out
}

// Answer passes a call that has been made. It reports whether its pool has to be decided again.
func (e *Evaluator) Answer(c *Call) bool {
	if c.Plugin == nil && c.Err == nil {
		return false
	}
	if ch := c.chain(); ch != nil {
		c.run.answer, c.run.again, ch.awaited = c, false, c.run
		return true
	}
	ch := e.chainOf(c)
	if ch == nil || ch.awaited == nil {
		return false
	}
	// The chain that has asked is replaced, or the call was not kept: a call of this one may have been dropped.
	ch.awaited.again = ch.awaited.again || ch.awaited.plugin == c.Name && ch.awaited.answer == nil
	return ch.awaited.again
}

// chain returns the chain that waits for the call; nil: none does any more.
func (c *Call) chain() *chain {
	if c.run == nil {
		return nil
	}
	if ch := c.run.chain; ch.awaited != nil && c.run.of == &ch.steps[0] {
		return ch
	}
	return nil
}

// chainOf returns the chain that a call belongs to, nil if it does not exist any more.
func (e *Evaluator) chainOf(c *Call) *chain {
	m := e.pools[c.Key]
	switch {
	case m == nil:
		return nil
	case c.Shadow:
		return m.shadow
	}
	return &m.enforced
}

// Continue continues the chain of an answer that was passed to Answer. It reports whether the next call of the chain is in Calls; otherwise the
// pool has to be decided again.
func (e *Evaluator) Continue(c *Call, now time.Time) (asked bool) {
	ch := c.chain()
	if ch == nil || ch.awaited.answer != c {
		return false
	}
	e.resume(ch, &e.pools[c.Key].times, c, now.UnixMilli())
	return ch.awaited != nil
}

// DecideNow makes the calls that a decision waits for in the calling goroutine, until it waits for none, and returns it.
func (e *Evaluator) DecideNow(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	d, at, asks := e.Ask(p, in, now)
	for asks {
		for _, c := range e.Calls() {
			c.Do()
			e.Answer(c)
		}
		d, at, asks = e.Resume(p, in, now)
	}
	return d, at
}

// Awaited returns the number of pools whose decision waits for a plugin; shadows do not count. It looks at all pools.
func (e *Evaluator) Awaited() (n int) {
	for _, m := range e.pools {
		if m.enforced.pendingSince != 0 {
			n++
		}
	}
	return n
}

// poolState is the state of a PoolKey.
type poolState struct {
	name     string // of the policy
	times    conditionTimes
	enforced chain
	shadow   *chain   // nil: the policy has none
	before   formerly // of a policy with a guard
}

// Backoff between calls of a plugin that fails on the same input.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Decide returns the decision for a pool, and when to call Decide again (zero: only on a change; see Shadow.RequeueAt for the
// shadow). If plugins have to answer first, Calls has the calls, and the decision is the one until then. Without a policy or without eligible
// endpoints the default rules decide and no plugin is asked. now must be by a clock that nobody can set: requests have its times, and
// decisions.
func (e *Evaluator) Decide(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	d, at, _ := e.decideIn(whole, p, in, now)
	return d, at
}

// Ask is Decide, unless it asks plugins: Resume then has the decision, with their answers or without.
func (e *Evaluator) Ask(p *Policy, in *Input, now time.Time) (d Decision, at time.Time, asks bool) {
	return e.decideIn(asking, p, in, now)
}

// Resume is Ask after Answer, with the same input and time: the answers are not looked for by their digest.
func (e *Evaluator) Resume(p *Policy, in *Input, now time.Time) (d Decision, at time.Time, asks bool) {
	return e.decideIn(resuming, p, in, now)
}

func (e *Evaluator) decideIn(of pass, p *Policy, in *Input, now time.Time) (_ Decision, _ time.Time, asks bool) {
	if p == nil {
		e.DeletePool(keyOf(in))
		return Decision{Weights: defaultWeights(in)}, time.Time{}, false
	}
	for { // at most three times: with the settings of the Service, the last good ones, those of the policy
		applied := e.Settings(in.Service, p).InForce
		m := e.poolFor(keyOf(in), applied)
		if of != resuming {
			m.times.update(in.Port.Endpoints, now)
		}
		d, at := e.decide(m, in, now, of)
		if e.Settings(in.Service, p).InForce != applied {
			continue
		}
		asks = d.Err == errAsked
		if p.Guard.FailedPercent > 0 {
			d.Without = m.without(in)
		}
		if m.shadow != nil {
			d.Shadow = e.decideShadow(m, in, now, &d, of)
			asks = asks || d.Shadow.Err == errAsked
		}
		return d, at, asks
	}
}

func (e *Evaluator) decide(m *poolState, in *Input, now time.Time, of pass) (Decision, time.Time) {
	d := Decision{Weights: defaultWeights(in), Policy: m.name}
	c := &m.enforced
	p := c.policy
	if len(p.Steps) == 0 {
		if e.stopWaiting(c); p.Panic.Below > 0 {
			d.Origin = FromChain
		}
		c.lastGood = nil
		return d, time.Time{}
	}
	if !anyPositive(d.Weights) {
		e.stopWaiting(c)
		return d, time.Time{}
	}
	answer, requeueAt, err := e.evaluate(c, &m.times, in, now, &d.Evaluation, of)
	if err == errAsked {
		d.Err = err
		return d, requeueAt
	}
	if err != nil {
		d.Err = fmt.Errorf("policy %s: %s: %w", p.Name, keyOf(in), err)
		if p.OnFailure == LastGood || errors.Is(err, ErrPending) {
			c.keepLastGood(in, &d)
		}
		return d, requeueAt
	}
	c.lastGood, d.Origin = answer, FromChain
	answer.enforce(answer.weights(in), in, &d)
	return d, requeueAt
}

// keepLastGood applies the last good decision, if there is one, to the current endpoints.
func (c *chain) keepLastGood(in *Input, d *Decision) {
	if w := c.lastGood.applyTo(in, d.Weights); w != nil {
		d.Origin = FromLastGood
		c.lastGood.enforce(w, in, d)
	}
}

// enforce makes an answer with these weights the decision.
func (g *lastGood) enforce(weights []uint16, in *Input, d *Decision) {
	d.Weights, d.ResetAt, d.KeepDraining, d.Balance = weights, g.resets(in), g.draining(in), g.balance
	d.Sheds = g.shedsOf(in)
}

// poolFor returns the state of a pool, for a policy. Condition times are kept when the policy changes.
func (e *Evaluator) poolFor(key PoolKey, p *Policy) *poolState {
	m := e.pools[key]
	if m == nil {
		m = &poolState{name: p.Name}
		e.pools[key] = m
	}
	if m.enforced.policy == p {
		return m
	}
	renamed := m.name != p.Name
	if renamed {
		m.before = formerly{}
		if p.Guard.FailedPercent > 0 {
			m.before = formerly{m.name, m.enforced.lastGood}
		}
	}
	m.name = p.Name
	e.use(&m.enforced, p, renamed)
	switch {
	case len(p.Shadow) == 0:
		if m.shadow != nil {
			e.stopWaiting(m.shadow)
		}
		m.shadow = nil
	case m.shadow == nil:
		m.shadow = &chain{shadow: true}
		fallthrough
	default:
		e.use(m.shadow, p, renamed)
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
func (e *Evaluator) DeletePool(k PoolKey) {
	if m := e.pools[k]; m != nil {
		if e.stopWaiting(&m.enforced); m.shadow != nil {
			e.stopWaiting(m.shadow)
		}
		delete(e.pools, k)
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
