package policy

import (
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Call is one call of a plugin for a pool that an Evaluator asks for, see Evaluator.Calls. Whoever makes it owns it until it is
// passed to Evaluator.Answer: it shares no memory with the Evaluator.
//
// Of the calls of a pool and a plugin, the newest replaces one that has not begun, which has no answer then. While one is
// running, a newer one may be dropped: the pool asks again when the first has its answer.
type Call struct {
	Key    PoolKey
	Shadow bool   // of the policy's shadow: what is enforced does not wait for it
	Name   string // of the plugin
	// Plugin is nil if the pool asks the plugin no more: a call of it that has not begun has no answer.
	Plugin   Plugin
	Request  abi.Request
	Response abi.Response
	// Err is the error of Plugin.Decide. An error that wraps ErrPending means that the plugin could not be called, for instance
	// because a new revision has replaced it: the pool is then decided again.
	Err error

	zones []abi.Zone // reused for Request.Zones
	state []byte     // reused for Request.State
	// endpointStates is reused for Request.EndpointStates.
	endpointStates []byte
	keys           []string // reused for Request.Keys
	// Of the keys, reused for Request.ServiceValues and Endpoint.Values.
	endpointKeys          []declaredKey
	serviceValues, values []abi.Value
	run                   *chainRun // nil: none, see Again
}

// DoAll makes calls of one plugin, in their order.
func DoAll(calls []*Call) {
	if p, ok := calls[0].Plugin.(Batcher); ok && len(calls) > 1 {
		p.DecideAll(calls)
		return
	}
	for _, c := range calls {
		c.Do()
	}
}

// Do calls the plugin.
func (c *Call) Do() {
	if c.Plugin != nil {
		c.Err = c.Plugin.Decide(&c.Request, &c.Response)
	}
}

// Repeatable reports whether the pool loses nothing when the answer of the call is Again: it is the first of its chain.
func (c *Call) Repeatable() bool { return c.run == nil || c.run.index == 0 }

// Again returns the answer of a Repeatable call that whoever makes calls has not kept: the pool asks again.
func (k PoolKey) Again(plugin string) *Call {
	_, shadow := CutShadow(plugin)
	return &Call{Key: k, Shadow: shadow, Name: plugin, Err: errAgain}
}

// Check returns an error if the answer of a plugin of a role is not one to the request, or leaves no endpoint with capacity and a
// share.
func (c *Call) Check(role abi.Role) error {
	if len(c.Response.Results) != len(c.Request.Endpoints) {
		return fmt.Errorf("answer has %d endpoints, the request %d", len(c.Response.Results), len(c.Request.Endpoints))
	}
	if n := len(c.Response.EndpointStates); n != 0 && n != len(c.Request.Endpoints)*abi.MaxEndpointState {
		return fmt.Errorf("answer has %d bytes of states of endpoints, want none or %d for each", n, abi.MaxEndpointState)
	}
	if len(c.Response.State) > abi.MaxStateLen {
		return fmt.Errorf("answer has %d bytes of state, the limit is %d", len(c.Response.State), abi.MaxStateLen)
	}
	if len(c.Response.Groups) > 0 && role != abi.RoleShare {
		return fmt.Errorf("answer has groups, which are not for a plugin of role %s", role)
	}
	if role == abi.RoleReset {
		return nil
	}
	for i := range c.Response.Results {
		e, value := &c.Request.Endpoints[i], c.Response.Results[i].Value
		other := e.Capacity
		if role.WritesCapacity() {
			other = e.Share
		}
		if e.Conditions&abi.Eligible != 0 && value > 0 && other > 0 {
			return nil
		}
	}
	return errors.New("answer leaves no eligible endpoint with capacity and a share")
}

// room returns how many endpoints a request can have without more memory.
func (c *Call) room() int { return cap(c.Request.Endpoints) }
