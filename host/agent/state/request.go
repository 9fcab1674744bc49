package state

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

// Request is a request that a plugin has answered, without its state.
type Request struct {
	Name    string          `json:"name"` // namespace.service.port.family.pool.plugin, in lower case
	Fixture fixture.Fixture `json:"fixture"`
}

// AddWithoutPort adds the endpoints that a port of the Service does not reach. It may be called outside of the engine's loop.
func (x *Explanation) AddWithoutPort(e *planner.Explanation) {
	for _, w := range e.WithoutPort() {
		x.WithoutPort = append(x.WithoutPort, w.String())
	}
}

// AddRequests adds the requests that the plugins of the Service have answered last.
func (x *Explanation) AddRequests(e *planner.Explanation) {
	for i := range e.Seen {
		port := e.Decisions[i].Port
		for _, pool := range []struct {
			name string
			seen []policy.Seen
		}{{"cluster", e.Seen[i].Cluster}, {"local", e.Seen[i].Local}} {
			for _, s := range pool.seen {
				name := port.Name
				parts := []string{name.Service.Namespace, name.Service.Name, cmp.Or(name.Port, name.Protocol.String()), port.Family.String(), pool.name, s.Plugin}
				x.Requests = append(x.Requests, Request{
					Name:    strings.ToLower(strings.Join(parts, ".")),
					Fixture: fixture.Fixture{Plugin: s.Plugin, Settings: json.RawMessage(s.Settings), Request: s.Request},
				})
			}
		}
	}
}
