package metrics

import "github.com/prometheus/client_golang/prometheus"

// Retries counts refused connections of Services that have asked for retries.
type Retries struct{ Retried, NoRoom uint64 }

// Descriptors of retriesCollector.
var (
	descRetried = desc("refused_connections_retried_total", "Number of refused connections of which the client was not told, so that it tries again "+
		"(annotation sluice.dev/refused-connections).")
	descNotRetried = desc("refused_connections_not_retried_total", "Number of connections that were refused at once because too many had been within five seconds.")
)

// retriesCollector reads the kernel's counters at each scrape.
type retriesCollector struct{ read func() (Retries, bool) }

// Describe implements prometheus.Collector.
func (c *retriesCollector) Describe(out chan<- *prometheus.Desc) {
	out <- descRetried
	out <- descNotRetried
}

// Collect implements prometheus.Collector.
func (c *retriesCollector) Collect(out chan<- prometheus.Metric) {
	if r, ok := c.read(); ok {
		out <- prometheus.MustNewConstMetric(descRetried, prometheus.CounterValue, float64(r.Retried))
		out <- prometheus.MustNewConstMetric(descNotRetried, prometheus.CounterValue, float64(r.NoRoom))
	}
}
