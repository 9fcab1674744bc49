package plugins

import (
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// Stats returns the statistics of each plugin since startup, over all its revisions and settings, sorted by name.
func (s *Set) Stats() []metrics.PluginStats {
	s.mu.RLock()
	by := maps.Clone(s.closed)
	open := append(slices.Collect(maps.Values(s.loaded)), s.retired...)
	s.mu.RUnlock() // calls may delay the statistics of a plugin
	for _, p := range open {
		addStats(by, p, true)
	}
	out := make([]metrics.PluginStats, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[name])
	}
	return out
}

// Memory returns the host memory of all plugins and its limit, in bytes.
func (s *Set) Memory() (used, limit int64) { return s.host.MemoryInUse() }

// addStats adds the statistics of an instance to those of its plugin. The gauges count only while it is open.
func addStats(by map[string]metrics.PluginStats, p *loadedPlugin, open bool) {
	name, n := p.Report().Name, p.Stats()
	sum := by[name]
	sum.Plugin = name
	sum.Calls += n.Calls
	sum.Failures += n.Failures
	sum.OutOfFuel += n.OutOfFuel
	sum.Late += n.Late
	sum.Fuel += n.Fuel
	sum.LogDropped += n.LogDropped
	sum.Evicted += n.Evicted
	sum.RepeatFuel += n.Repeats.Fuel
	sum.Repeats.Equal += n.Repeats.Equal
	sum.Repeats.Different += n.Repeats.Different
	sum.Repeats.Failed += n.Repeats.Failed
	sum.Repeats.Skipped += n.Repeats.Skipped
	sum.Suspended.Forgotten += n.Suspended.Forgotten
	sum.Settings.Recycled += n.Settings.Recycled
	sum.Settings.Accepted += n.Settings.Accepted
	sum.Settings.Refused += n.Settings.Refused
	sum.Settings.Throttled += n.Settings.Throttled
	if open {
		sum.Settings.Handles += n.Settings.Handles
		sum.MemoryBytes += n.HostBytes
		sum.Instances += n.Open
		sum.Suspended.Ports += n.Suspended.Ports
		sum.Suspended.Namespaces += n.Suspended.Namespaces
		sum.Suspended.Settings += n.Suspended.Settings
		sum.Suspended.Modules += n.Suspended.Modules
	}
	by[name] = sum
}
