package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Call is one call of a plugin for a pool. It shares no memory with the Evaluator.
type Call struct {
	Key      PoolKey
	Shadow   bool   // of the policy's shadow: what is enforced does not wait for it
	Name     string // of the plugin
	Plugin   Plugin
	Request  abi.Request
	Response abi.Response
	// Err is the error of Plugin.Decide. An error that wraps ErrPending means that the plugin could not be called, for instance
	// because a new revision has replaced it: the pool is then decided again.
	Err error

	zones []abi.Zone // reused for Request.Zones
	state []byte     // reused for Request.State
	keys  []string   // reused for Request.Keys
	// Of the keys, reused for Request.ServiceValues and Endpoint.Values.
	podKeys               []declaredKey
	serviceValues, values []abi.Value
	run                   chainRun
}

// Do calls the plugin.
func (c *Call) Do() { c.Err = c.Plugin.Decide(&c.Request, &c.Response) }

// Status is what a Caller has done with a Call.
type Status uint8

// The statuses. While a call is Queued it belongs to the Caller. Otherwise the Caller has no reference to it.
const (
	// Answered means that Response and Err are set.
	Answered Status = iota
	// Queued means that the answer is passed to Evaluator.Deliver later. The call has replaced one of the same pool and step
	// that had not begun, which is not delivered.
	Queued
	// Busy means that the call was not accepted because an earlier one of the same pool and step is running. Deliver of
	// that one follows.
	Busy
	// Refused means that the call was not accepted because too many calls of the plugin are queued. The pool has to be decided
	// again once Room returns true.
	Refused
)

// Caller calls plugins: at once, or concurrently with the Evaluator.
type Caller interface {
	Call(*Call) Status
	// Room reports whether several calls of a plugin for Services of a namespace would be accepted.
	Room(plugin, namespace string) bool
	// ThrottledSince returns since when, by the wall clock, the calls of a plugin wait because it has used up its share of CPU
	// time, zero if they do not.
	ThrottledSince(plugin string) time.Time
}

// direct is the Caller that answers at once.
type direct struct{}

func (direct) Call(c *Call) Status { c.Do(); return Answered }

func (direct) Room(string, string) bool { return true }

func (direct) ThrottledSince(string) time.Time { return time.Time{} }

// Check sets the weights of ineligible endpoints to 0, and returns an error if no weight is left.
func (c *Call) Check() error {
	if len(c.Response.Results) != len(c.Request.Endpoints) {
		return fmt.Errorf("answer has %d endpoints, the request %d", len(c.Response.Results), len(c.Request.Endpoints))
	}
	if len(c.Response.State) > abi.MaxStateLen {
		return fmt.Errorf("answer has %d bytes of state, the limit is %d", len(c.Response.State), abi.MaxStateLen)
	}
	hasWeight := false
	for i := range c.Response.Results {
		if c.Request.Endpoints[i].Conditions&abi.Eligible == 0 {
			c.Response.Results[i].Weight = 0
		}
		hasWeight = hasWeight || c.Response.Results[i].Weight > 0
	}
	if !hasWeight {
		return errors.New("answer has no eligible endpoint with a weight above 0")
	}
	return nil
}

// maxFreeCalls and maxFreeEndpoints bound the memory of calls that are kept for reuse: their number, and their endpoints, of some 250 bytes.
const (
	maxFreeCalls     = 64
	maxFreeEndpoints = 16_384
)

// newCall returns a call to build a request with n endpoints in: the smallest one with room for them, or the largest.
func (e *Evaluator) newCall(n int) *Call {
	if len(e.free) == 0 {
		return &Call{}
	}
	best := 0
	for i := range e.free {
		room, of := e.free[i].room(), e.free[best].room()
		if room >= n && (of < n || room < of) || room < n && room > of {
			best = i
		}
	}
	c := e.free[best]
	e.freeEndpoints -= c.room()
	e.free = slices.Delete(e.free, best, best+1)
	return c
}

// release keeps a call that nothing refers to any more for reuse.
func (e *Evaluator) release(c *Call) {
	if len(e.free) < maxFreeCalls && e.freeEndpoints+c.room() <= maxFreeEndpoints {
		c.Plugin, c.Err, c.run = nil, nil, chainRun{}
		if cap(c.values) > maxFreeEndpoints {
			c.values = nil
		}
		e.free, e.freeEndpoints = append(e.free, c), e.freeEndpoints+c.room()
	}
}

// room returns how many endpoints a request can have without more memory.
func (c *Call) room() int { return cap(c.Request.Endpoints) }
