// Package maglev implements the plugin maglev: each client is sent to the same endpoint from every node.
package maglev

import "github.com/sluice-proxy/sluice/sdk"

// plugin has no state: a decision follows from the request alone.
type plugin struct{}

// New returns a plugin.
func New() sdk.Plugin { return plugin{} }

// Configure refuses all settings.
func (plugin) Configure(text []byte) error { return sdk.ParseSettings(text, func(*sdk.Fields) {}) }

// Decide asks for endpoints by hash of the client's address. The data plane fills the table, from endpoints and weights alone.
func (plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	resp.SetBalance(sdk.BalanceSourceHash)
	reason := resp.AddReason("by client address")
	for i := range req.NumEndpoints() {
		if req.Endpoint(i).Load() > 0 {
			resp.SetReasonID(i, reason)
		}
	}
	return nil
}
