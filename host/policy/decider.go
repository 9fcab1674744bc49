package policy

import (
	"errors"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// ErrLoading says that a plugin is not there yet. It is a failure like others for what is decided, and none to report:
// after a start, the last good decision of the checkpoint holds, or the default rules.
var ErrLoading = errors.New("the plugin is being loaded")

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
