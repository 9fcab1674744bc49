package policy

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Evaluator evaluates policies. It stores the plugins' answers for each pool and asks a plugin again only when its input has
// changed or its requeue time has passed. It calls no plugin: what it asks is in Calls, and the answers come back through Answer.
// It is not safe for concurrent use.
//
// Whatever belongs to a Service is deleted with it: pools and readiness by port, settings and choices by name. The chains of a
// pool are those of the policy that decided about it last.
type Evaluator struct {
	chains
	holds
	chooser
	pools map[PoolKey]*poolState
	// Guards are the states of the guards of policies, by name. Save and Restore include them.
	Guards map[string]*GuardState
	// Node is what was last known of this node's Node; nil: nothing. Save and Restore include it.
	Node *model.Node
	// OmittedStates is how many states of endpoints the last Save had no room for.
	OmittedStates int
}

// NewEvaluator returns an Evaluator without state. plugins returns the current revision of a plugin by name; every decision calls
// it, so it must be cheap.
func NewEvaluator(plugins func(string) (Plugin, error)) *Evaluator {
	l, k := &loader{plugins: plugins, revisions: map[*Policy]cachedRevision{}}, &known{}
	return &Evaluator{
		chains: chains{
			requests:        requests{loader: l, known: k},
			serviceSettings: serviceSettings{loader: l, settings: map[model.Name]*ownSettings{}},
		},
		holds:   holds{known: k, readiness: map[readinessKey]*readiness{}},
		chooser: chooser{map[model.Name]string{}},
		pools:   map[PoolKey]*poolState{},
		Guards:  map[string]*GuardState{},
	}
}

// PluginCalls returns the number of plugin calls that have been answered so far.
func (e *Evaluator) PluginCalls() uint64 { return e.answers }

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

// Continue continues the chain of an answer that was passed to Answer. It reports whether the next call of the chain is in Calls;
// otherwise the pool has to be decided again.
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

// Decide returns the decision for a pool, and when to call Decide again (zero: only on a change; see Shadow.RequeueAt for the
// shadow). If plugins have to answer first, Calls has the calls, and the decision is the one until then. Without a policy or
// without eligible endpoints the default rules decide and no plugin is asked. now must be by a clock that nobody can set:
// requests have its times, and decisions.
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
