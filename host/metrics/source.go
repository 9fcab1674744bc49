package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Source is where cluster state comes from, as metrics see it at a scrape. What is nil is not there.
type Source struct {
	// Resources are the kinds of objects that are followed.
	Resources func() []Resource
	// Requests count those to the API server.
	Requests func() []RequestCount
}

// Resource is a kind of objects that is followed.
type Resource struct {
	Name      string
	Staleness time.Duration // since when it is not followed; 0: it is
}

// RequestCount counts requests of one kind: its code is that of HTTP, or "<error>" when there was no answer.
type RequestCount struct {
	Code, Method, Host string
	Count              uint64
}

// SetSource says where cluster state comes from.
func (m *Metrics) SetSource(s Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.source = s
}

var (
	descStale    = desc("source_stale_seconds", "How long a resource has not been followed: 0 while it is watched, or was read when it was last due.", "resource")
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
