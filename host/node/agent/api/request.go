package api

import (
	"encoding/json"
)

// Request is a request that a plugin has answered, without its state.
type Request struct {
	Name    string          `json:"name"`    // namespace.service.port.family.pool.plugin, in lower case
	Fixture json.RawMessage `json:"fixture"` // see sdk/fixture
}
