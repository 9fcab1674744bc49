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

// Seen returns what the plugins of a pool's chain saw, then those of the shadow, each up to the first that has not answered. in
// must be the input of the pool's last decision; if its endpoints are not, Seen returns nil. It calls no plugin.
func (e *Evaluator) Seen(in *Input) []Seen {
	m := e.pools[keyOf(in)]
	eps := in.Port.Endpoints
	if m == nil || !sameAddrs(m.times.addrs, len(eps), func(i int) netip.AddrPort { return eps[i].Addr }) {
		return nil
	}
	all := e.seen(&m.enforced, &m.times, in)
	if m.shadow != nil {
		all = append(all, e.seen(m.shadow, &m.times, in)...)
	}
	return all
}

func (e *chains) seen(ch *chain, times *conditionTimes, in *Input) (all []Seen) {
	if ch.policy == nil || len(ch.steps) == 0 {
		return nil
	}
	c := &Call{}
	e.build(c, ch, times, in, time.UnixMilli(ch.steps[0].answeredAt))
	digest := e.digester.request(&c.Request)
	for i := range ch.steps {
		s, step := &ch.steps[i], &ch.plugins()[i]
		plugin, err := e.plugins(step.Plugin)
		if err != nil || s.answeredAt == 0 || len(s.results.answer.Values) != len(c.Request.Endpoints) {
			return all
		}
		seen := Seen{
			Plugin: step.Plugin, Settings: step.Settings, Needs: plugin.Needs(step.Configured()), Keys: plugin.Keys(step.Configured()),
			At: s.answeredAt, Request: c.Request,
		}
		seen.Changed = s.err != nil || s.digest != e.digester.step(digest, plugin.Revision(), step.Settings, &c.Request)
		seen.Request.Now, seen.Request.Endpoints = s.answeredAt, slices.Clone(c.Request.Endpoints)
		s.told.tell(&seen.Request)
		all = append(all, seen)
		c.Request.Apply(plugin.Role(), s.results.answer)
	}
	return all
}
