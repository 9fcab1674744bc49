package policy

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// maxCounters bounds the counters of plugins by policy. What is beyond is counted for all policies of the plugin together.
const maxCounters = 4096

// CounterKey identifies a counter of a plugin.
type CounterKey struct {
	Policy  string // "": policies beyond the limit
	Plugin  string // of a shadow: see ShadowPlugin
	Counter string // name in the manifest
}

// Counter is a counter of a plugin. It never decreases: a plugin says by how much it grows.
type Counter struct {
	CounterKey
	Total uint64
}

// counters are the counters of plugins.
type counters struct {
	totals  map[CounterKey]uint64
	changed bool // since the last report
}

// add adds what an answer counts. Names are those of the plugin: whatever it answers makes no other series.
func (c *counters) add(policy, plugin string, names []string, by *[abi.MaxCounters]uint32) {
	for i, name := range names[:min(len(names), len(by))] {
		key := CounterKey{policy, plugin, name}
		if _, known := c.totals[key]; !known {
			if c.totals == nil {
				c.totals = map[CounterKey]uint64{}
			}
			if len(c.totals) >= maxCounters {
				key.Policy = ""
			}
			c.totals[key] += 0 // a series begins at 0
			c.changed = true
		}
		if by[i] > 0 {
			c.totals[key] += min(uint64(by[i]), math.MaxUint64-c.totals[key])
			c.changed = true
		}
	}
}

// KeepCounters forgets the counters of plugins that no policy of a set has any more, and those that a loaded plugin does not
// name: there is room for others then.
func (e *Evaluator) KeepCounters(set *Set) {
	if len(e.counters.totals) > 0 {
		e.keepCounters(set.All(), func(string) bool { return true })
	}
}

// KeepCountersOf does so for the policies of objects that have changed, in or no longer in the set.
func (e *Evaluator) KeepCountersOf(changed []*Object, set *Set) {
	if len(e.counters.totals) == 0 {
		return
	}
	of, now := map[string]bool{}, []*Policy{}
	for _, o := range changed {
		of[o.Policy.Name] = true
		if o = set.objects.all[o.Name]; o != nil {
			now = append(now, o.Policy)
		}
	}
	e.keepCounters(now, func(policy string) bool { return of[policy] })
}

// keepCounters forgets counters of some policies: all but those of the plugins that policies have.
func (e *Evaluator) keepCounters(policies []*Policy, some func(policy string) bool) {
	used := map[CounterKey]bool{}
	for _, p := range policies {
		for step := range p.All() {
			used[CounterKey{p.Name, step.Plugin, ""}], used[CounterKey{"", step.Plugin, ""}] = true, true
		}
	}
	maps.DeleteFunc(e.counters.totals, func(k CounterKey, _ uint64) bool {
		if !some(k.Policy) {
			return false
		}
		gone := !used[CounterKey{k.Policy, k.Plugin, ""}]
		if p, err := e.requests.loader.plugins(k.Plugin); err == nil && !gone {
			gone = !slices.Contains(p.Counters(), k.Counter)
		}
		e.counters.changed = e.counters.changed || gone
		return gone
	})
}

// Counters returns the counters of all plugins, sorted, and nil if none has changed since the last call.
func (e *Evaluator) Counters() []Counter {
	if !e.counters.changed {
		return nil
	}
	e.counters.changed = false
	out := make([]Counter, 0, len(e.counters.totals))
	for k, n := range e.counters.totals {
		out = append(out, Counter{k, n})
	}
	slices.SortFunc(out, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Plugin, b.Plugin), cmp.Compare(a.Counter, b.Counter))
	})
	return out
}
