package policy

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Seen is what a plugin saw when it gave its last answer, without the answers before. The fields of Request that the plugin does
// not ask for are those that other plugins of the chain ask for.
type Seen struct {
	Plugin   string
	Settings string      // canonical JSON object, "" for none
	Needs    uint32      // abi.Need bits of the plugin with these settings
	Keys     []string    // that it declares
	At       int64       // Request.Now, Unix milliseconds
	Changed  bool        // something has changed since, and the plugin has not answered yet, or with an error
	Request  abi.Request // read-only
}

// told is what a plugin was told of connections when it gave its last answer. Everything else that it saw follows from the input,
// which has not changed since if its digest has not.
type told struct {
	connectionsAgeMS, outcomesWindowMS uint32
	connections                        []uint32
	outcomes                           []abi.Outcomes
}

// newTold returns what a plugin with these needs was told, nil if it asks for nothing of it.
func newTold(r *abi.Request, needs uint32) *told {
	if needs&(abi.NeedConnections|abi.NeedOutcomes) == 0 {
		return nil
	}
	t := &told{connectionsAgeMS: r.ConnectionsAgeMS, outcomesWindowMS: r.OutcomesWindowMS}
	if needs&abi.NeedConnections != 0 {
		t.connections = make([]uint32, len(r.Endpoints))
		for i := range t.connections {
			t.connections[i] = r.Endpoints[i].Connections
		}
	}
	if needs&abi.NeedOutcomes != 0 {
		t.outcomes = make([]abi.Outcomes, len(r.Endpoints))
		for i := range t.outcomes {
			t.outcomes[i] = r.Endpoints[i].Outcomes
		}
	}
	return t
}

// tell sets what a plugin was told.
func (t *told) tell(r *abi.Request) {
	if t == nil {
		return
	}
	r.ConnectionsAgeMS, r.OutcomesWindowMS = t.connectionsAgeMS, t.outcomesWindowMS
	for i := range r.Endpoints {
		if i < len(t.connections) {
			r.Endpoints[i].Connections = t.connections[i]
		}
		if i < len(t.outcomes) {
			r.Endpoints[i].Outcomes = t.outcomes[i]
		}
	}
}

// Seen returns what the plugins of a pool's chain saw, up to the first that has not answered. in must be the input of the
// pool's last decision; if its endpoints are not, Seen returns nil. It calls no plugin.
func (e *Evaluator) Seen(in *Input) (all []Seen) {
	m := e.pools[PoolKey{in.Port.Name, in.Port.Family, in.Pool}]
	eps := in.Port.Endpoints
	if m == nil || m.policy == nil || len(m.steps) == 0 || !sameAddrs(m.times.addrs, len(eps), func(i int) netip.AddrPort { return eps[i].Addr }) {
		return nil
	}
	c := &Call{}
	e.build(c, m, in, time.UnixMilli(m.steps[0].answeredAt))
	digest := e.digester.request(&c.Request)
	for i := range m.steps {
		s, step := &m.steps[i], &m.policy.Steps[i]
		plugin, err := e.plugins(step.Plugin)
		if err != nil || s.answeredAt == 0 || len(s.results.weights) != len(c.Request.Endpoints) {
			return all
		}
		seen := Seen{
			Plugin: step.Plugin, Settings: step.Settings, Needs: plugin.Needs(step.configured()), Keys: plugin.Keys(step.configured()),
			At: s.answeredAt, Request: c.Request,
		}
		seen.Changed = s.err != nil || s.digest != e.digester.step(digest, plugin.Revision(), step.Settings, c.Request.Endpoints)
		seen.Request.Now, seen.Request.Endpoints = s.answeredAt, slices.Clone(c.Request.Endpoints)
		s.told.tell(&seen.Request)
		all = append(all, seen)
		for j, w := range s.results.weights {
			c.Request.Endpoints[j].Weight = uint32(w)
		}
	}
	return all
}
