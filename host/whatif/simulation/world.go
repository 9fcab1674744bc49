package simulation

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// world is the cluster over time, which does not depend on policies. Times are since the beginning.
type world struct {
	cluster  *model.Snapshot
	services map[model.Name][]version            // those that change, in the order of time; the first is the cluster as it is given
	routes   map[model.ObjectName][]routeVersion // those that change, likewise
	nodes    []nodesVersion                      // in the order of time
	fates    map[string][]time.Duration
	answers  map[netip.Addr][]answer // in the order of time; none: it always answers
	pods     map[model.Name]*model.Pod
	zones    []string  // of Nodes and endpoints, sorted
	start    time.Time // by the clock of policies
	end      time.Duration
	events   []Event
}

// version is the EndpointSlices of a Service from a time on.
type version struct {
	at     time.Duration
	slices []*model.EndpointSlice
}

// nodesVersion is what policies are told of all Nodes from a time on.
type nodesVersion struct {
	at    time.Duration
	ready []string // names, sorted
	zones []abi.Zone
}

// answer is how the Pods with an address respond to new connections from a time on.
type answer struct {
	at    time.Duration
	kind  scenario.Response
	delay time.Duration // of slow
}

// versionsOf returns the EndpointSlices of a Service over time.
func (w *world) versionsOf(name model.Name) []version {
	if v := w.services[name]; v != nil {
		return v
	}
	return []version{{at: -settle, slices: w.cluster.Slices[name]}}
}

// answerAt returns how an address responds.
func (w *world) answerAt(a netip.Addr, t time.Duration) answer {
	list := w.answers[a]
	i := at(list, t, func(a answer) time.Duration { return a.at })
	if i < 0 {
		return answer{}
	}
	return list[i]
}

// isLost reports whether a Node is lost: times are when it is lost and when it is back, alternately.
func isLost(fate []time.Duration, t time.Duration) bool {
	return at(fate, t, func(d time.Duration) time.Duration { return d })%2 == 0
}

// at returns the index of the last element whose time is not after t, -1 if there is none.
func at[T any](list []T, t time.Duration, timeOf func(T) time.Duration) int {
	i, found := slices.BinarySearchFunc(list, t, func(e T, t time.Duration) int { return cmp.Compare(timeOf(e), t) })
	for found && i+1 < len(list) && timeOf(list[i+1]) == t {
		i++
	}
	if found {
		return i
	}
	return i - 1
}

// newNodesVersion returns what policies are told of Nodes.
func newNodesVersion(t time.Duration, nodes map[string]*model.Node) nodesVersion {
	v := nodesVersion{at: t, zones: planner.ZoneTable(nodes)}
	for name, n := range nodes {
		if n.Ready {
			v.ready = append(v.ready, name)
		}
	}
	slices.Sort(v.ready)
	return v
}

// index returns the position of a Node among those that are ready, see abi.Request.
func (v *nodesVersion) index(node string) uint32 {
	i, _ := slices.BinarySearch(v.ready, node)
	return uint32(i)
}

// zonesOf returns the zones of Nodes and endpoints, sorted.
func zonesOf(c *model.Snapshot) []string {
	zones := map[string]bool{}
	for _, n := range c.Nodes {
		zones[n.Zone] = true
	}
	for _, all := range c.Slices {
		for _, s := range all {
			for i := range s.Endpoints {
				zones[endpointZone(c, s.Endpoints[i].Zone, s.Endpoints[i].Node)] = true
			}
		}
	}
	return sortedKeys(zones)
}

// endpointZone returns the zone of an endpoint, which is that of its Node if it has none itself.
func endpointZone(c *model.Snapshot, zone, node string) string {
	if n := c.Nodes[node]; zone == "" && n != nil {
		return n.Zone
	}
	return zone
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
