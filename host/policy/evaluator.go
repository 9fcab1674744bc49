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
	// Guards are the states of the guards of policies, by name. Save and Restore include them.
	Guards map[string]*GuardState
	// Node is what was last known of this node's Node; nil: nothing. Save and Restore include it.
	Node *model.Node

	plugins   func(string) (Plugin, error)
	caller    Caller
	pools     map[PoolKey]*poolState
	readiness map[readinessKey]*readiness // of Service ports whose policy has Panic
	settings  map[model.Name]*ownSettings // of the Services that have some
	choices   map[model.Name]string       // the policy that the annotation of a Service has chosen last
	revisions map[*Policy]cachedRevision
	digester  digester
	portIndex []int   // from the endpoints of the last request that was built to Port.Endpoints
	free      []*Call // for reuse
	// freeEndpoints is the room of these calls.
	freeEndpoints int
	calls         uint64 // answered so far
}

// NewEvaluator returns an Evaluator without state. plugins returns the current revision of a plugin by name; every decision calls
// it, so it must be cheap. They are called at once; CallThrough changes that.
func NewEvaluator(plugins func(string) (Plugin, error)) *Evaluator {
	return &Evaluator{
		plugins: plugins, caller: direct{}, pools: map[PoolKey]*poolState{}, readiness: map[readinessKey]*readiness{},
		settings: map[model.Name]*ownSettings{}, choices: map[model.Name]string{}, revisions: map[*Policy]cachedRevision{},
		Guards: map[string]*GuardState{},
	}
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
	of := &m.enforced
	if c.Shadow {
		of = m.shadow
	}
	if of != nil && of.awaited == c {
		c.run.answered = true
	}
	return of != nil
}

// Continue continues the chain of an answer that was passed to Deliver. It reports whether the next call is queued, or the plugin that
// has refused it; otherwise the pool has to be decided again.
func (e *Evaluator) Continue(c *Call, now time.Time) (queued bool, refusedBy string) {
	m := e.pools[c.Key]
	if m == nil || m.enforced.awaited != c || !c.run.answered {
		return false, ""
	}
	ch := &m.enforced
	e.resume(ch, &m.times, c, now.UnixMilli())
	if ch.awaited == c && errors.Is(c.run.unsent, errRefused) {
		return false, ch.plugins()[c.run.index].Plugin
	}
	return ch.awaited == c && c.run.unsent == nil, ""
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

// ThrottledSince returns since when the calls of a plugin wait for CPU time, see Caller.
func (e *Evaluator) ThrottledSince(plugin string) time.Time { return e.caller.ThrottledSince(plugin) }

// Room reports whether calls of a plugin for a namespace would be accepted, see Caller.
func (e *Evaluator) Room(plugin, namespace string) bool { return e.caller.Room(plugin, namespace) }

// poolState is the state of a PoolKey.
type poolState struct {
	name     string // of the policy
	times    conditionTimes
	enforced chain
	shadow   *chain // nil: the policy has none
}

// Backoff between calls of a plugin that fails on the same input.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Decide returns the decision for a pool, and when to call Decide again (zero: only on a change; see Shadow.RequeueAt for the
// shadow). Without a policy or without eligible endpoints the default rules decide and no plugin is called. now must be by a clock that
// nobody can set: requests have its times, and decisions.
func (e *Evaluator) Decide(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	if p == nil {
		delete(e.pools, keyOf(in))
		return Decision{Weights: defaultWeights(in)}, time.Time{}
	}
	for { // at most three times: with the settings of the Service, the last good ones, those of the policy
		applied := e.Settings(in.Service, p).InForce
		m := e.poolFor(keyOf(in), applied)
		m.times.update(in.Port.Endpoints, now)
		d, at := e.decide(m, in, now)
		if e.Settings(in.Service, p).InForce != applied {
			continue
		}
		if m.shadow != nil {
			d.Shadow = e.decideShadow(m, in, now, &d)
		}
		return d, at
	}
}

func (e *Evaluator) decide(m *poolState, in *Input, now time.Time) (Decision, time.Time) {
	d := Decision{Weights: defaultWeights(in), Policy: m.name}
	c := &m.enforced
	p := c.policy
	if len(p.Steps) == 0 {
		if c.stopWaiting(); p.Panic.Below > 0 {
			d.Origin = FromChain
		}
		c.lastGood = nil
		return d, time.Time{}
	}
	if !anyPositive(d.Weights) {
		c.stopWaiting()
		return d, time.Time{}
	}
	answer, requeueAt, err := e.evaluate(c, &m.times, in, now, &d.Evaluation)
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
	m.name = p.Name
	m.enforced.use(p, renamed)
	switch {
	case len(p.Shadow) == 0:
		m.shadow = nil
	case m.shadow == nil:
		m.shadow = &chain{shadow: true}
		fallthrough
	default:
		m.shadow.use(p, renamed)
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
