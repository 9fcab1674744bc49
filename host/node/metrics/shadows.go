package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
)

var descServiceDivergence = desc("service_shadow_divergence_ratio", "Share of new connections to a Service that would go to other endpoints with the "+
	"shadow of its policy than with what is in force: the mean over its ports.", "namespace", "service")

// shadows are the divergences of the Services whose policy has a shadow with a decision.
type shadows struct {
	mu       sync.Mutex
	services map[model.Name]float64
}

// update replaces the divergences of Services.
func (s *shadows) update(changed []tally.ServiceShadow) {
	if len(changed) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range changed {
		switch c := &changed[i]; {
		case !c.Compared:
			delete(s.services, c.Service)
		case s.services == nil:
			s.services = map[model.Name]float64{c.Service: c.Divergence}
		default:
			s.services[c.Service] = c.Divergence
		}
	}
}

func (s *shadows) collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, v := range s.services {
		out <- prometheus.MustNewConstMetric(descServiceDivergence, prometheus.GaugeValue, v, name.Namespace, name.Name)
	}
}
