package policy

import (
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
	endpoints  endpointStates
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
	// unreadSince is since when values that a plugin declares are not read, Unix milliseconds; 0: they are.
	unreadSince int64
}

// plugins returns the steps of the policy that the chain consists of.
func (ch *chain) plugins() []Step { return ch.of(ch.policy) }

func (ch *chain) of(p *Policy) []Step {
	if ch.shadow {
		return p.Shadow
	}
	return p.Steps
}

// chainRun is an evaluation of a chain for one request. Its answer stays useful when the input changes before the last plugin has
// answered: it is applied by address, see lastGood.
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
	unread       []string      // see chain.unread
}

// Why the answer of a chain is not available yet.
var (
	// errNodesUnknown is the error of a plugin that needs the cluster's Nodes before they are read.
	errNodesUnknown = fmt.Errorf("%w: the cluster's Nodes are not known yet", ErrPending)
	errAsked        = fmt.Errorf("%w: it has been asked", ErrPending)
	errAgain        = fmt.Errorf("%w: too many calls wait", ErrPending)
)

// order goes on to the role of plugin number index, and returns an error if it comes after a plugin of a later one.
func (r *chainRun) order(role abi.Role, steps []Step) error {
	if role < r.role {
		return &OrderError{r.index, steps[r.index].Plugin, role, steps[r.index-1].Plugin, r.role}
	}
	r.role = role
	return nil
}

type savedStep struct {
	Plugin   string `json:"plugin"`
	Settings string `json:"settings,omitempty"`
	State    []byte `json:"state,omitempty"`
	// Endpoints are the states of endpoints.
	Endpoints []savedEndpointState `json:"endpoints,omitempty"`
}

// saveSteps returns the states of the plugins.
func (ch *chain) saveSteps() []savedStep {
	if ch.saved != nil || ch.policy == nil {
		return ch.saved
	}
	var out []savedStep
	for i, s := range ch.plugins() {
		out = append(out, savedStep{s.Plugin, s.Settings, ch.steps[i].state, ch.steps[i].endpoints.save()})
	}
	return out
}

// stateRoom is for how many further states of endpoints a checkpoint has room, and how many there was none for.
type stateRoom struct{ left, omitted int }

// saveWithin is saveSteps without the states of endpoints for which there is no room.
func (ch *chain) saveWithin(room *stateRoom) []savedStep {
	out := slices.Clone(ch.saveSteps())
	for i := range out {
		if n := len(out[i].Endpoints); n > room.left {
			out[i].Endpoints = nil
			room.omitted += n
		} else {
			room.left -= n
		}
	}
	return out
}

// poolState is the state of a PoolKey.
type poolState struct {
	name     string // of the policy
	times    conditionTimes
	enforced chain
	shadow   *chain   // nil: the policy has none
	before   formerly // of a policy with a guard
}
