package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Source provides the metrics of the cluster state's source at each scrape. A nil function provides none.
type Source struct {
	// Resources returns the watched resources.
	Resources func() []Resource
	// Requests returns the requests to the API server.
	Requests func() []RequestCount
}

// Resource is a watched resource.
type Resource struct {
	Name      string
	Staleness time.Duration // time since it was last known to be up to date; 0 while it is watched
}

// RequestCount is a number of requests. Code is the HTTP status code, or "<error>" if there was no response.
type RequestCount struct {
	Code, Method, Host string
	Count              uint64
}

// SetSource sets the source of the cluster state.
func (m *Metrics) SetSource(s Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.source = s
}

var (
	descStale    = desc("source_stale_seconds", "Time since a resource was last known to be up to date, in seconds: 0 while it is watched, or if its last periodic list succeeded.", "resource")
	descRequests = prometheus.NewDesc("rest_client_requests_total", "Number of HTTP requests, partitioned by status code, method, and host.",
		[]string{"code", "method", "host"}, nil)
)

func (s Source) collect(out chan<- prometheus.Metric) {
	if s.Resources != nil {
		for _, r := range s.Resources() {
			out <- prometheus.MustNewConstMetric(descStale, prometheus.GaugeValue, r.Staleness.Seconds(), r.Name)
		}
	}
	if s.Requests != nil {
		for _, r := range s.Requests() {
			out <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(r.Count), r.Code, r.Method, r.Host)
		}
	}
}
