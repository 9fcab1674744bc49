package kube

import (
	"sync"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// PodStats counts what is read of Pods because policies need it.
type PodStats struct {
	Watches  int
	Pods     int
	Services [model.PodsUnavailable + 1]int // whose policies need their Pods, by state
}

// podStats are the PodStats of a source.
type podStats struct {
	mu     sync.Mutex
	stats  PodStats
	merged *mergedPods
}

func (p *podStats) set(r *podWatches, demanded int) {
	var stats PodStats
	for _, n := range r.namespaces {
		stats.Watches += len(n.watches)
		for _, state := range n.states {
			stats.Services[state]++
		}
	}
	stats.Services[model.PodsPending] = demanded - stats.Services[model.PodsRead] - stats.Services[model.PodsUnavailable]
	p.mu.Lock()
	p.stats, p.merged = stats, r.merged
	p.mu.Unlock()
}

// PodStats returns what is read of Pods. It is safe for concurrent use.
func (s *Source) PodStats() PodStats {
	s.podStats.mu.Lock()
	defer s.podStats.mu.Unlock()
	out := s.podStats.stats
	if s.podStats.merged != nil {
		out.Pods = s.podStats.merged.count()
	}
	return out
}
