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
	// Pods returns what is read of Pods.
	Pods func() Pods
	// Labels returns which labels of Nodes and namespaces are read.
	Labels func() []Labels
}

// Labels counts the different labels of a kind of objects that policies see.
type Labels struct {
	Of                     string
	Read, Pending, Refused int
}

// Pods counts what is read of Pods because policies need it.
type Pods struct {
	Watches, Pods int
	// Services whose policies need their Pods.
	Pending, Read, Unavailable int
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
	descStale       = desc("source_stale_seconds", "Time since a resource was last known to be up to date, in seconds: 0 while it is watched, or if its last periodic list succeeded.", "resource")
	descPodWatches  = desc("pod_watches", "Number of watches of Pods. There are none unless a plugin declares labels, annotations or CPU requests of Pods.")
	descPods        = desc("pods", "Number of Pods of which declared values are kept.")
	descPodServices = desc("pod_services", "Number of Services whose policy sees values of Pods, by state: pending, read, or unavailable (the values are absent).", "state")
	descLabels      = desc("source_labels", "Number of different labels of Nodes or namespaces that policies see, by state: read, pending, or refused (there are too many: the values are absent).", "of", "state")
	descRequests    = prometheus.NewDesc("rest_client_requests_total", "Number of HTTP requests, partitioned by status code, method, and host.",
		[]string{"code", "method", "host"}, nil)
)

// newRequestDurations has kube-proxy's labels and buckets.
func newRequestDurations() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(native(prometheus.HistogramOpts{Name: "rest_client_request_duration_seconds",
		Help:    "Request latency in seconds. Broken down by verb, and host.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}}), []string{"verb", "host"})
}

// ObserveRequest counts a request to the API server, other than a watch, that took d until its response began.
func (m *Metrics) ObserveRequest(verb, host string, d time.Duration) {
	m.requestDurations.WithLabelValues(verb, host).Observe(d.Seconds())
}

func (s Source) collect(out chan<- prometheus.Metric) {
	if s.Resources != nil {
		for _, r := range s.Resources() {
			out <- prometheus.MustNewConstMetric(descStale, prometheus.GaugeValue, r.Staleness.Seconds(), r.Name)
		}
	}
	if s.Pods != nil {
		p := s.Pods()
		gauge := func(d *prometheus.Desc, n int, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
		}
		gauge(descPodWatches, p.Watches)
		gauge(descPods, p.Pods)
		gauge(descPodServices, p.Pending, "pending")
		gauge(descPodServices, p.Read, "read")
		gauge(descPodServices, p.Unavailable, "unavailable")
	}
	if s.Labels != nil {
		for _, l := range s.Labels() {
			for state, n := range map[string]int{"read": l.Read, "pending": l.Pending, "refused": l.Refused} {
				out <- prometheus.MustNewConstMetric(descLabels, prometheus.GaugeValue, float64(n), l.Of, state)
			}
		}
	}
	if s.Requests != nil {
		for _, r := range s.Requests() {
			out <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(r.Count), r.Code, r.Method, r.Host)
		}
	}
}
