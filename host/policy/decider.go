package policy

import (
	"errors"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// ErrPending says that a plugin has not been asked yet, as it is being loaded or as there was no time. That is no
// failure: until it is asked the last good decision holds, whatever the policy says of failures, else the default rules.
var ErrPending = errors.New("the plugin has not been asked yet")

// Plugin is one loaded plugin revision with its settings: host/wasm's, or a native one in tests. A Plugin is used by
// one goroutine at a time and answers the same request the same way, always.
type Plugin interface {
	// Decide fills resp, which the caller has reset and owns. An error means that resp is worthless; it is
	// bounded in time and memory, whatever the plugin does.
	Decide(req *abi.Request, resp *abi.Response) error
	// Needs are the abi.Need bits that the plugin asks for.
	Needs() uint32
	// Revision identifies code and settings: it changes when an answer may.
	Revision() string
}
