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

// chain is the evaluation of a policy's chain of plugins for one request, of which the Call is the current one. Its answer stays
// useful when the input changes before the last plugin has answered: it is applied by address, see lastGood.
type chain struct {
	index        int           // of the plugin to call
	digest       requestDigest // of the request for the first plugin
	stepDigest   requestDigest // of the request for plugin number index
	nodesUnknown bool          // Input.NodesUnknown
	outcomes     outcomesOf    // those in the request
	podsUnknown  bool          // see poolState.waitForPods
	answered     bool          // the call has been delivered
	unsent       error         // why the call was not accepted, errBusy or errRefused; nil: it was
}

// Why the answer of a chain is not available yet.
var (
	// errNodesUnknown is the error of a plugin that needs the cluster's Nodes before they are read.
	errNodesUnknown = fmt.Errorf("%w: the cluster's Nodes are not known yet", ErrPending)
	errQueued       = fmt.Errorf("%w: the call is queued", ErrPending)
	errBusy         = fmt.Errorf("%w: the call for earlier endpoints is running", ErrPending)
	errRefused      = fmt.Errorf("%w: too many calls are queued", ErrPending)
)

// run calls the plugins of a chain whose input has changed or whose requeue time has passed, beginning with number index. With an
// error, index is the plugin that failed or has not answered. onStep is called for each plugin with an answer.
func (e *Evaluator) run(m *poolState, c *Call, nowMS int64, onStep func(*stepState)) error {
	for ; c.chain.index < len(m.steps); c.chain.index++ {
		s := &m.steps[c.chain.index]
		if err := e.runStep(m, s, c, nowMS); err != nil {
			return err
		}
		for i, w := range s.results.weights {
			c.Request.Endpoints[i].Weight = uint32(w)
		}
		onStep(s)
	}
	return nil
}

// runStep calls a plugin if that is due, and returns the error of its last call.
func (e *Evaluator) runStep(m *poolState, s *stepState, c *Call, nowMS int64) error {
	if c.chain.answered {
		c.chain.answered = false
		return e.record(m, s, c, nowMS)
	}
	step := &m.policy.Steps[c.chain.index]
	plugin, err := e.plugins(step.Plugin)
	needs := uint32(0)
	if err == nil {
		needs = plugin.Needs(step.configured())
	}
	if c.chain.nodesUnknown && needs&abi.NeedNodes != 0 {
		err = errNodesUnknown
	}
	if err == nil && c.chain.podsUnknown && slices.ContainsFunc(plugin.Keys(step.configured()), abi.IsPodKey) {
		err = errPodsUnknown
	}
	if err != nil {
		s.digest, s.requeueAt = requestDigest{}, 0 // call the plugin as soon as it is available
		return err
	}
	digest := e.digester.step(c.chain.digest, plugin.Revision(), step.Settings, c.Request.Endpoints)
	if !s.due(digest, nowMS, needs, c.chain.outcomes) {
		return s.err
	}
	if replaces := m.awaited != nil && m.awaited != c; !replaces && e.Admit != nil && !e.Admit(step.Plugin, c.Key.Port.Service) {
		return errRefused
	}
	c.chain.stepDigest = digest
	c.Name, c.Plugin, c.Err = step.Plugin, plugin, nil
	c.Request.Settings = step.settings()
	c.state = append(c.state[:0], s.state...)
	c.Request.State = c.state
	c.Response.Reset(len(c.Request.Endpoints))
	switch e.caller.Call(c) {
	case Queued:
		return errQueued
	case Busy:
		return errBusy
	case Refused:
		return errRefused
	default:
		return e.record(m, s, c, nowMS)
	}
}

// record records the answer of a call, or its error and when to retry.
func (e *Evaluator) record(m *poolState, s *stepState, c *Call, nowMS int64) error {
	e.calls++
	err, resp := c.Err, &c.Response
	if errors.Is(err, ErrPending) {
		return err
	}
	if errors.Is(err, abi.ErrSettings) {
		e.settingsRefused(c.Key.Port.Service, m.policy, &m.policy.Steps[c.chain.index], c.Plugin, err)
	}
	s.digest, s.reading = c.chain.stepDigest, c.chain.outcomes.reading
	if err == nil {
		err = c.check()
	}
	if s.err = err; err != nil {
		s.backoff = min(max(minBackoff, 2*s.backoff), maxBackoff)
		s.requeueAt = nowMS + s.backoff.Milliseconds()
		return err
	}
	s.backoff, s.answeredAt, s.requeueAt = 0, c.Request.Now, 0
	if resp.RequeueAfter > 0 {
		// RequeueAfter counts from Request.Now, a whole second. More than one call a second would be useless: a plugin sees no
		// smaller unit of time.
		s.requeueAt = c.Request.Now + max(resp.RequeueAfter, time.Second).Milliseconds()
	}
	s.results = packResults(resp.Results)
	s.balance = resp.Balance
	s.state = append(s.state[:0], resp.State...)
	s.told = newTold(&c.Request, c.Plugin.Needs(m.policy.Steps[c.chain.index].configured()))
	return nil
}
