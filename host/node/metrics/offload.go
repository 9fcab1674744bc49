package metrics

import "github.com/prometheus/client_golang/prometheus"

// Offload is how connections of policies with a trafficHint are forwarded.
type Offload struct {
	Frontends           int // of these policies
	Links, LinksLeftOut int // of the flowtable; 0 while nothing is offloaded
	Failures            uint64
}

// Descriptors of offloadCollector.
var (
	descOffloadFrontends = desc("offload_frontends", "Number of frontends whose policy has a trafficHint.")
	descOffloadLinks     = desc("offload_links", "Number of network links whose packets of such connections go by the flowtable; 0 while connections are not offloaded.")
	descOffloadLeftOut   = desc("offload_links_left_out", "Number of network links beyond the limit of the flowtable.")
	descOffloadFailures  = desc("offload_failures_total", "Number of transactions about the flowtable that the kernel refused.")
)

// offloadCollector reports what was found last.
type offloadCollector struct{ read func() Offload }

// Describe implements prometheus.Collector.
func (c *offloadCollector) Describe(out chan<- *prometheus.Desc) {
	out <- descOffloadFrontends
	out <- descOffloadLinks
	out <- descOffloadLeftOut
	out <- descOffloadFailures
}

// Collect implements prometheus.Collector.
func (c *offloadCollector) Collect(out chan<- prometheus.Metric) {
	o := c.read()
	out <- prometheus.MustNewConstMetric(descOffloadFrontends, prometheus.GaugeValue, float64(o.Frontends))
	out <- prometheus.MustNewConstMetric(descOffloadLinks, prometheus.GaugeValue, float64(o.Links))
	out <- prometheus.MustNewConstMetric(descOffloadLeftOut, prometheus.GaugeValue, float64(o.LinksLeftOut))
	out <- prometheus.MustNewConstMetric(descOffloadFailures, prometheus.CounterValue, float64(o.Failures))
}
