package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// PoolKey names one list of one Service port in one family: what is decided at a time.
type PoolKey struct {
	Port   model.PortName
	Family model.Family
	Pool   uint8 // abi.PoolCluster or abi.PoolLocal
}

// String names the pool for people.
func (k PoolKey) String() string {
	pool := "cluster pool"
	if k.Pool == abi.PoolLocal {
		pool = "local pool"
	}
	return fmt.Sprintf("%s/%s %s %s", k.Port, k.Port.Protocol, k.Family, pool)
}

// Input is what a decision is about.
type Input struct {
	Service *model.Service
	Port    *service.Port
	Pool    uint8
	Node    string
	Zone    string
	Zones   []abi.Zone // every zone that a Node names with Nodes and MilliCPU, sorted by name; Ready is counted here
	// NodesUnknown: Zones has not all Nodes of the cluster. Plugins that need them are not asked.
	NodesUnknown bool
}

// Decision is what the endpoints of a pool get. All slices are parallel to Input.Port.Endpoints.
type Decision struct {
	Weights      []uint16
	ResetAt      []int64 // when established connections are reset, Unix milliseconds; 0: never. Nil: none is
	KeepDraining []bool  // stays as a draining member at weight 0. Nil: none does
	Balance      uint8   // abi.Balance…
	Origin       Origin
	Policy       string       // its name, "" for none
	Err          error        // why the chain did not answer
	Steps        []StepResult // what each plugin answered, as far as the chain went
	Observed     []uint16     // what the chain answered under mode Observe
}

// Origin says where a decision comes from.
type Origin uint8

// Where a decision comes from.
const (
	FromDefault  Origin = iota // the default rules: no policy, nothing eligible, or a failure with nothing better
	FromChain                  // the chain's answer
	FromLastGood               // the chain's last good answer, as it fails now
	FromObserve                // the default rules, as the policy only observes
)

func (f Origin) String() string { return [...]string{"default", "policy", "last good", "observe"}[f] }

// StepResult is one plugin's answer.
type StepResult struct {
	Plugin  string
	Weights []uint16 // not to be changed
	Reasons []string
	Err     error
}

// Evaluator runs policies. It remembers for each pool what the plugins answered, so that none is called again while
// nothing changed and no wake time passed. It is not safe for concurrent use.
type Evaluator struct {
	// ShouldDefer, when it says so, puts off calls that are due: they come at the next Decide for the pool. Nil: never.
	ShouldDefer func() bool

	plugins func(Step) (Plugin, error)
	pools   map[PoolKey]*poolState
	call    pluginCall
}

// NewEvaluator makes an empty memory. The function gives the present revision of a step's plugin; it is called at each
// decision and must be cheap.
func NewEvaluator(plugins func(Step) (Plugin, error)) *Evaluator {
	return &Evaluator{plugins: plugins, pools: map[PoolKey]*poolState{}}
}

// PluginCalls counts the plugin calls so far.
func (c *Evaluator) PluginCalls() uint64 { return c.call.calls }

// poolState is what is remembered of a PoolKey.
type poolState struct {
	policy     *Policy // nil as long as it is only restored
	name       string  // the policy's
	saved      []savedStep
	times      conditionTimes
	steps      []stepState
	lastGood   *lastGood // the chain's last answer
	digest     requestDigest
	generation uint64
}

// Back-off between the calls of a plugin that fails on the same input.
const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// Decide gives the decision for a pool at now, and when to ask again (zero: only on a change). Without a policy, and
// in a pool where nothing is eligible, the default rules hold and no plugin is called.
func (c *Evaluator) Decide(p *Policy, in *Input, now time.Time) (Decision, time.Time) {
	key := PoolKey{in.Port.Name, in.Port.Family, in.Pool}
	d := Decision{Weights: defaultWeights(in)}
	if p == nil {
		delete(c.pools, key)
		return d, time.Time{}
	}
	d.Policy = p.Name
	m := c.poolFor(key, p)
	m.times.update(in.Port.Endpoints, now)
	if !anyPositive(d.Weights) {
		return d, time.Time{}
	}
	answer, wake, err := c.evaluate(m, in, now, &d)
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
	return d, wake
}

// poolFor finds the memory of a pool. Over a change of the policy the endpoints' history stays, and, as long as the
// policy keeps its name, so does the last good decision: it is better than none while the new chain fails.
func (c *Evaluator) poolFor(key PoolKey, p *Policy) *poolState {
	m := c.pools[key]
	switch {
	case m == nil:
		m = &poolState{}
		c.pools[key] = m
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

// Delete drops what is remembered of a Service port.
func (c *Evaluator) Delete(p model.PortName) {
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		delete(c.pools, PoolKey{p, f, abi.PoolCluster})
		delete(c.pools, PoolKey{p, f, abi.PoolLocal})
	}
}

// defaultWeights are the weights of the default rules: 1 for what they choose.
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
	for _, w := range weights {
		if w > 0 {
			return true
		}
	}
	return false
}
