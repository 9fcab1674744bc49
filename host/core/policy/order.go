package policy

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// OrderError means that a plugin of a chain comes after one of a later role.
type OrderError struct {
	Index  int // of Plugin in the chain
	Plugin string
	Role   abi.Role

	Before      string
	BeforesRole abi.Role
}

func (e *OrderError) Error() string {
	return fmt.Sprintf("it has the role %s and must come before plugin %s, which has the role %s: a chain is in the order exclude, reduce, share, locality, pick, reset, adjust",
		e.Role, e.Before, e.BeforesRole)
}

// CheckOrder returns the first OrderError of a chain, of those of its plugins that are loaded.
func CheckOrder(steps []Step, plugins func(name string) (Plugin, error)) *OrderError {
	last := OrderError{}
	for i := range steps {
		plugin, err := plugins(steps[i].Plugin)
		if err != nil {
			continue
		}
		role := plugin.Role()
		if role < last.Role {
			return &OrderError{i, steps[i].Plugin, role, last.Plugin, last.Role}
		}
		last.Plugin, last.Role = steps[i].Plugin, role
	}
	return nil
}
