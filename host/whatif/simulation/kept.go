package simulation

import (
	"cmp"
	"slices"
)

// keptService is a Service port with what its result needs.
type keptService struct {
	results    []ServiceResult // of each run
	loads      []*portLoad     // likewise
	divergence float64
	asked      bool // it is listed in any case
}

// keptServices are the Service ports that a result may list.
type keptServices struct {
	list  []*keptService
	least []float64 // of each score, what a Service needs to be listed; nil: nothing
}

// scores returns what Services are ranked by: the overload of each run, and the divergence.
func (k *keptService) scores() (out []float64) {
	for i := range k.results {
		out = append(out, k.results[i].MaxOverload)
	}
	return append(out, k.divergence)
}

// compare orders by name.
func (k *keptService) compare(l *keptService) int {
	return k.results[0].ServicePort.Compare(l.results[0].ServicePort)
}

// add adds a Service port, unless others take precedence by each score.
func (k *keptServices) add(s *keptService) {
	keep := s.asked || k.least == nil
	for i, score := range s.scores() {
		keep = keep || score >= k.least[i]
	}
	if keep {
		k.list = append(k.list, s)
	}
	if len(k.list) >= 10*MaxServices {
		k.prune()
	}
}

// prune keeps the first MaxServices by each score.
func (k *keptServices) prune() {
	if len(k.list) == 0 {
		return
	}
	kept := map[*keptService]bool{}
	k.least = nil
	for i := range k.list[0].scores() {
		ranked := k.ranked(i)
		for _, s := range ranked {
			kept[s] = true
		}
		k.least = append(k.least, ranked[len(ranked)-1].scores()[i])
	}
	k.list = slices.DeleteFunc(k.list, func(s *keptService) bool { return !kept[s] && !s.asked })
}

// ranked returns the first MaxServices by score number i, the largest first.
func (k *keptServices) ranked(i int) []*keptService {
	ranked := slices.SortedFunc(slices.Values(k.list), func(a, b *keptService) int {
		return cmp.Or(cmp.Compare(b.scores()[i], a.scores()[i]), a.compare(b))
	})
	return ranked[:min(len(ranked), MaxServices)]
}

// addEndpoints completes the results with the endpoints that have the largest overload.
func (k *keptService) addEndpoints(sim *Simulation) {
	for r, l := range k.loads {
		out, n := &k.results[r], len(l.port.endpoints)
		all := make([]EndpointResult, n)
		largest := make([]float64, n)
		for e := range all {
			at := &l.port.endpoints[e]
			all[e] = EndpointResult{
				Address: at.addr.String(), Pod: at.pod, Node: at.node, Zone: sim.world.zones[at.zone], Capacity: at.capacity,
				Load: make([]float64, sim.samples), Overload: make([]float64, sim.samples),
			}
		}
		for s := range sim.samples {
			l.overloads(s, sim.sampleTime(s), func(e int, load, overload float64) {
				all[e].Load[s], all[e].Overload[s] = round(load), round(overload)
				largest[e] = max(largest[e], overload)
			})
		}
		order := make([]int, n)
		for e := range order {
			order[e] = e
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(largest[b], largest[a]) })
		order = order[:min(n, MaxEndpoints)]
		slices.Sort(order)
		for _, e := range order {
			out.Endpoints = append(out.Endpoints, all[e])
		}
		out.EndpointsOmitted = n - len(order)
	}
}
