package policy

import (
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// ErrPending means that a plugin has not answered yet, because it is being loaded or because the call is queued or running. It is
// not a failure: until the answer the last good decision stays in force whatever the policy's OnFailure, or else the default
// rules.
var ErrPending = errors.New("the plugin has not answered yet")

// Plugin is a revision of a plugin: one of host/plugin/wasm, or a native one in tests. It is used by one goroutine at a time and
// must be deterministic.
type Plugin interface {
	// Decide fills resp, which the caller has reset and owns. After an error resp is undefined. Decide is bounded in time and
	// memory whatever the plugin does. An error that wraps abi.ErrSettings means that the plugin refuses req.Settings.
	Decide(req *abi.Request, resp *abi.Response) error
	// Needs returns the abi.Need bits of what the plugin needs with settings of the configuration. With settings of a Service it
	// needs no more than with those of its policy.
	Needs(settings string) uint32
	// Keys returns the keys that the plugin declares for settings of the configuration, see abi.ParseKeys. Settings of a Service
	// declare no others than those of its policy.
	Keys(settings string) []string
	// Role is what the plugin decides, see abi.Role.
	Role() abi.Role
	// Counters are the names of abi.Response.Counters; the plugin has no others.
	Counters() []string
	// Revision identifies the code. It changes whenever answers may change.
	Revision() string
}

// Batcher is a Plugin to which several calls together cost less than one by one.
type Batcher interface {
	Plugin
	// DecideAll is Decide for each of the calls, with its Request and Response, whose error is Err. A call that fails has no
	// effect on others. The last calls may have the error ErrUnasked, but not the first.
	DecideAll(calls []*Call)
}

// RetryError is an error of Plugin.Decide that says when to ask again.
type RetryError interface {
	error
	// Retry returns after how long; earlier calls fail too. 0: unknown.
	Retry() time.Duration
}

// ErrUnasked is the error of a call that a Batcher has not made, because those before it took long. It is to be made another
// time.
var ErrUnasked = errors.New("the plugin has not been asked")
