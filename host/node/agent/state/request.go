package state

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

// AddWithoutPort adds the endpoints that a port of the Service does not reach. It may be called outside of the engine's loop.
func AddWithoutPort(x *api.Explanation, e *planner.Explanation) {
	for _, w := range e.WithoutPort() {
		x.WithoutPort = append(x.WithoutPort, w.String())
	}
}

// AddRequests adds the requests that the plugins of the Service have answered last. It may be called outside of the engine's
// loop.
func AddRequests(x *api.Explanation, e *planner.Explanation) error {
	for i := range e.Seen {
		port := e.Decisions[i].Port
		for _, pool := range []struct {
			name string
			seen []policy.Seen
		}{{"cluster", e.Seen[i].Cluster}, {"local", e.Seen[i].Local}} {
			for _, s := range pool.seen {
				name := port.Name
				parts := []string{name.Service.Namespace, name.Service.Name, cmp.Or(name.Port, name.Protocol.String()), port.Family.String(), pool.name, s.Plugin}
				text, err := json.Marshal(fixture.Fixture{Plugin: s.Plugin, Settings: json.RawMessage(s.Settings), Request: s.Request})
				if err != nil {
					return fmt.Errorf("encode the request of plugin %s: %w", s.Plugin, err)
				}
				x.Requests = append(x.Requests, api.Request{Name: strings.ToLower(strings.Join(parts, ".")), Fixture: text})
			}
		}
	}
	return nil
}
