package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// stepState is the state of one plugin in a chain.
type stepState struct {
	digest     requestDigest // of the last request that was answered
	results    packedResults
	balance    uint8
	state      []byte
	told       *told         // see Seen; nil: nothing
	answeredAt int64         // Request.Now of the last answer, Unix milliseconds
	answeredBy string        // revision of the plugin
	requeueAt  int64         // call again then, Unix milliseconds; 0: only on a change
	err        error         // of the last call
	backoff    time.Duration // current one, 0 without an error
	reading    uint64        // of outcomes, that of the last request that was answered
}

// due reports whether the plugin has to be called at nowMS for a request with this digest. The numbers of outcomes are no reason,
// but new failures are, unless the plugin backs off.
func (s *stepState) due(digest requestDigest, nowMS int64, needs uint32, o outcomesOf) bool {
	failures := needs&abi.NeedOutcomes != 0 && s.reading < o.failedAt && s.backoff == 0
	return s.digest != digest || s.requeueAt != 0 && s.requeueAt <= nowMS || failures
}

// chain is the state of a chain of plugins of a pool: of the one that is enforced, or of the shadow.
type chain struct {
	policy *Policy // nil after Restore, until the first Decide
	shadow bool
	// saved are the plugins' states with the settings that they belong to, after Restore or a change of the policy, until the new
	// chain has answered: while its settings are refused, those before are in force again.
	saved      []savedStep
	steps      []stepState
	lastGood   *lastGood     // the last answer; nil: none
	digest     requestDigest // of the last request
	generation uint64
	awaited    *chainRun   // that the chain waits for: whoever makes calls has one of the pool, or its answer; nil: none
	failure    *StepResult // of the last run that has ended; nil: it succeeded
	// pendingSince is since when the current input waits for a plugin, Unix milliseconds; 0: it does not.
	pendingSince int64
	// podsSince is since when the Pods that a plugin needs are not read, Unix milliseconds; 0: they are, or none needs them.
	podsSince int64
}

// plugins returns the steps of the policy that the chain consists of.
func (ch *chain) plugins() []Step { return ch.of(ch.policy) }

func (ch *chain) of(p *Policy) []Step {
	if ch.shadow {
		return p.Shadow
	}
	return p.Steps
}

// use makes the chain that of a policy. If its steps change, the states of plugins whose settings stay the same are kept. The last good
// decision is kept as long as the policy keeps its name: it is better than none while the new chain fails.
func (e *Evaluator) use(ch *chain, p *Policy, renamed bool) {
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
			ch.steps[i].state = ch.saved[i].State
		}
	}
}

// stopWaiting forgets the run that the chain awaits.
func (e *Evaluator) stopWaiting(ch *chain) {
	if ch.awaited != nil {
		e.withdraw(ch.awaited)
	}
	ch.awaited, ch.pendingSince = nil, 0
}

// chainRun is an evaluation of a chain for one request. Its answer stays useful when the input changes before the last plugin has answered:
// it is applied by address, see lastGood.
type chainRun struct {
	key    PoolKey
	plugin string // that is asked
	chain  *chain
	of     *stepState // the first of its steps: if these are replaced, it has others
	answer *Call      // nil: there is none yet
	again  bool       // the call has not been made, and is to be asked for again

	index        int           // of the plugin
	digest       requestDigest // of the request for the first plugin
	stepDigest   requestDigest // of the request for plugin number index
	nodesUnknown bool          // Input.NodesUnknown
	outcomes     outcomesOf    // those in the request
	role         abi.Role      // of plugin number index, or of the one before
	podsUnknown  bool          // see chain.waitForPods
}

// Why the answer of a chain is not available yet.
var (
	// errNodesUnknown is the error of a plugin that needs the cluster's Nodes before they are read.
	errNodesUnknown = fmt.Errorf("%w: the cluster's Nodes are not known yet", ErrPending)
	errAsked        = fmt.Errorf("%w: it has been asked", ErrPending)
	errAgain        = fmt.Errorf("%w: too many calls wait", ErrPending)
)

// run asks the plugins of a chain whose input has changed or whose requeue time has passed, beginning with number index, until one has to answer
// first: the error is errAsked then, and the chain awaits it. With an error, index is the plugin that failed or has not answered.
func (e *Evaluator) run(ch *chain, c *Call, nowMS int64) error {
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
func (e *Evaluator) runStep(ch *chain, s *stepState, c *Call, nowMS int64) error {
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
	if err == nil && c.run.podsUnknown && slices.ContainsFunc(plugin.Keys(step.Configured()), abi.IsPodKey) {
		err = errPodsUnknown
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
	c.Response.Reset(len(c.Request.Endpoints))
	e.ask(ch, c)
	return errAsked
}

// order goes on to the role of plugin number index, and returns an error if it comes after a plugin of a later one.
func (r *chainRun) order(role abi.Role, steps []Step) error {
	if role < r.role {
		return &OrderError{r.index, steps[r.index].Plugin, role, steps[r.index-1].Plugin, r.role}
	}
	r.role = role
	return nil
}

// ask makes the chain wait for a call. If it waits for another plugin, that is asked no more.
func (e *Evaluator) ask(ch *chain, c *Call) {
	c.run.key, c.run.plugin, c.run.chain, c.run.of = c.Key, c.Name, ch, &ch.steps[0]
	if a := ch.awaited; a != nil && a.plugin != c.Name {
		e.withdraw(a)
	}
	ch.awaited = c.run
	e.asked, e.askedEndpoints = append(e.asked, c), e.askedEndpoints+len(c.Request.Endpoints)
}

// withdraw tells whoever makes calls that the pool does not ask the plugin any more.
func (e *Evaluator) withdraw(r *chainRun) {
	if r.answer == nil {
		_, shadow := CutShadow(r.plugin)
		e.asked = append(e.asked, &Call{Key: r.key, Shadow: shadow, Name: r.plugin})
	}
}

// record records the answer of a call, or its error and when to retry.
func (e *Evaluator) record(ch *chain, s *stepState, c *Call, nowMS int64) error {
	e.calls++
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
	s.told = newTold(&c.Request, c.Plugin.Needs(ch.plugins()[c.run.index].Configured()))
	return nil
}
