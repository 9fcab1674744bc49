package policy

import (
	"errors"
	"testing"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// A chain that is not in the order of roles is not run past the wrong pair, and the error names both plugins.
func TestChainInTheWrongOrderIsRefused(t *testing.T) {
	plugin := func(role abi.Role) *fakePlugin { return &fakePlugin{role: role, decide: favorFirst(7)} }
	for name, roles := range map[string][]abi.Role{
		"in order":         {abi.RoleExclude, abi.RoleReduce, abi.RoleShare, abi.RoleLocality, abi.RolePick, abi.RoleReset, abi.RoleAdjust},
		"two of a role":    {abi.RoleReduce, abi.RoleReduce, abi.RolePick, abi.RolePick},
		"adjusts first":    {abi.RoleAdjust, abi.RoleExclude},
		"one in between":   {abi.RoleExclude, abi.RoleLocality, abi.RoleShare, abi.RoleAdjust},
		"reduces at last":  {abi.RoleShare, abi.RoleLocality, abi.RoleReduce},
		"wrong later, too": {abi.RoleLocality, abi.RoleShare, abi.RoleExclude},
	} {
		var plugins []*fakePlugin
		for _, role := range roles {
			plugins = append(plugins, plugin(role))
		}
		wrong := 0
		for i := range roles[1:] {
			if roles[i+1] < roles[i] {
				wrong = i + 1
				break
			}
		}
		b := newFixture(plugins...)
		d, _ := b.decide()
		of := CheckOrder(b.policy.Steps, b.evaluator.plugins)
		var failed *OrderError
		if !errors.As(d.Err, &failed) {
			failed = nil
		}
		switch {
		case wrong == 0:
			if failed != nil || of != nil || d.Origin != FromChain {
				t.Errorf("%s: %v from %v, checked: %v", name, d.Err, d.Origin, of)
			}
			continue
		case failed == nil || of == nil || *failed != *of || d.Origin != FromDefault:
			t.Errorf("%s: %v from %v, checked: %v", name, d.Err, d.Origin, of)
		case failed.Index != wrong || failed.Role != roles[wrong] || failed.Before != b.policy.Steps[wrong-1].Plugin || failed.BeforesRole != roles[wrong-1]:
			t.Errorf("%s: %+v", name, failed)
		}
		for i, p := range plugins {
			if (p.calls > 0) != (i < wrong) {
				t.Errorf("%s: plugin %d was called %d times", name, i, p.calls)
			}
		}
	}
}
