// Package policytest has the plugin of tests.
package policytest

import "github.com/sluice-proxy/sluice/sdk/abi"

// Plugin is a policy.Plugin. A test sets Answer, or embeds Plugin in a type with state and a Decide of its own.
type Plugin struct {
	Answer func(req *abi.Request, resp *abi.Response) error // nil: every endpoint has the capacity 1
	Inputs uint32                                           // its needs
	Values []string                                         // its keys
	Code   string                                           // its revision
}

// Decide implements policy.Plugin.
func (p Plugin) Decide(req *abi.Request, resp *abi.Response) error {
	if p.Answer != nil {
		return p.Answer(req, resp)
	}
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	return nil
}

// Needs implements policy.Plugin.
func (p Plugin) Needs(string) uint32 { return p.Inputs }

// Keys implements policy.Plugin.
func (p Plugin) Keys(string) []string { return p.Values }

// Counters implements policy.Plugin.
func (p Plugin) Counters() []string { return nil }

// Role implements policy.Plugin: what the plugin answers are capacities.
func (p Plugin) Role() abi.Role { return abi.RoleReduce }

// Revision implements policy.Plugin.
func (p Plugin) Revision() string { return p.Code }
