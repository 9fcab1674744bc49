package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// group is Nodes that can differ only by their names and by the endpoints on them: they have the same zone, demand and fate, and
// the same bindings match.
type group struct {
	zone  int           // index of world.zones
	sets  []*policy.Set // of each run
	fate  []time.Duration
	nodes []*model.Node // sorted by name
}

// class is Nodes that are computed once for a unit.
type class struct {
	*group
	node    *model.Node // that is computed
	members int         // 0: a witness
	// witnessOf is the index of the class that a witness has to decide like, another one of the same list; -1: it is none.
	witnessOf int
}

const (
	// maxExact is the size up to which the Nodes of a group are computed one by one.
	maxExact = 4
	// Witnesses are other Nodes of a class that are computed to see that they decide the same: so many that there are about
	// maxChecks in all, but at least minWitnesses and at most maxWitnesses of a class.
	minWitnesses, maxWitnesses = 2, 32
	maxChecks                  = 20_000
)

// groupsOf divides the Nodes into groups, in the order of their first Nodes.
func groupsOf(in *Input, w *world, demand *demandOf) []*group {
	masks := map[string]*policy.Set{}
	byKey := map[string]*group{}
	var out []*group
	for _, name := range sortedKeys(w.cluster.Nodes) {
		n := w.cluster.Nodes[name]
		key := fmt.Sprintf("%q %v %d", n.Zone, w.fates[name], demand.cpu(n))
		if demand.own(name) {
			key += " " + name
		}
		var sets []*policy.Set
		for i := range in.Runs {
			set, mask := setOn(in.Runs[i].Settings.Policies, n)
			mask = fmt.Sprint(i, mask)
			if masks[mask] == nil {
				masks[mask] = set
			}
			sets = append(sets, masks[mask])
			key += " " + mask
		}
		g := byKey[key]
		if g == nil {
			zone, _ := slices.BinarySearch(w.zones, n.Zone)
			g = &group{zone: zone, sets: sets, fate: w.fates[name]}
			byKey[key] = g
			out = append(out, g)
		}
		g.nodes = append(g.nodes, n)
	}
	return out
}

// setOn returns a copy of a set for a Node, and which of its bindings apply there.
func setOn(set *policy.Set, n *model.Node) (*policy.Set, string) {
	if set == nil {
		return &policy.Set{}, ""
	}
	on := *set
	on.SetNode(planner.PolicyNode(n.Name, n))
	var mask strings.Builder
	for _, b := range on.NodeBindings(nil) {
		fmt.Fprintf(&mask, "%t ", b.Applies)
	}
	return &on, mask.String()
}

// hostsOf returns the names of the Nodes that the endpoints of a Service are on, or have hints for, at any time.
func hostsOf(versions []version) map[string]bool {
	hosts := map[string]bool{}
	for _, v := range versions {
		for _, s := range v.slices {
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				hosts[e.Node] = true
				for _, name := range e.ForNodes() {
					hosts[name] = true
				}
			}
		}
	}
	return hosts
}

// classes divides the Nodes into classes for a unit, whose first Service has a name. each reports whether each Node of a group is
// a class. Hosts, which its endpoints are on, are classes of their own.
func (s *Simulation) classes(first model.Name, hosts map[string]bool, each func(*group) bool) (out []class) {
	var rest []*model.Node
	random := rand.New(rand.NewPCG(uint64(s.in.Seed), hash(first)))
	for _, g := range s.groups {
		alone := s.in.EveryNode || len(g.nodes) <= s.maxExact || each(g)
		rest = rest[:0]
		for _, n := range g.nodes {
			if alone || hosts[n.Name] {
				out = append(out, class{g, n, 1, -1})
			} else {
				rest = append(rest, n)
			}
		}
		if len(rest) == 0 {
			continue
		}
		first := len(out)
		out = append(out, class{g, rest[0], len(rest), -1})
		for range min(s.witnesses, len(rest)-1) {
			out = append(out, class{g, rest[1+random.IntN(len(rest)-1)], 0, first})
		}
	}
	return out
}

func hash(name model.Name) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name.String()))
	return h.Sum64()
}
