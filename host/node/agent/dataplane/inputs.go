package dataplane

import "fmt"

// MissingInputs returns the optional inputs of plugins that a node in this mode cannot give, by wasm.Input.Name, with the reason.
func (m *Mode) MissingInputs() map[string]string {
	missing := map[string]string{}
	if !m.Caps().Outcomes {
		missing["outcomes"] = fmt.Sprintf("mode %s does not count the outcomes of connections", m.Name)
	}
	return missing
}
