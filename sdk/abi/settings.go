//go:build !wasip1

package abi

import "errors"

// Settings are the settings of a plugin for a request. The wire form has the handle that sluice_configure has returned for Text.
type Settings struct {
	Text string // a JSON object, "" for none
	// Own reports that Text has fields that the owner of the Service has set. Policy is the text without them.
	Own    bool
	Policy string
	// Answered reports that the plugin has answered with them before, for this Service port and pool.
	Answered bool
}

// ErrSettings means that a plugin refuses the settings of a request: sluice_configure has failed, and would again.
var ErrSettings = errors.New("settings refused")
