package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

var descInfo = desc("build_info", "What runs here: always 1. The mode is the one in force.", "version", "go_version", "mode")

// modeCollector gives what depends on the mode, which may change: kube-proxy's metrics of its mode nftables are there in
// that mode only.
type modeCollector struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (c *modeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- descInfo
	c.m.kube.syncFailures.Describe(out)
	c.m.kube.cleanupFailures.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *modeCollector) Collect(out chan<- prometheus.Metric) {
	mode := c.m.opt.CurrentMode()
	out <- prometheus.MustNewConstMetric(descInfo, prometheus.GaugeValue, 1, c.m.opt.Version, runtime.Version(), mode)
	if mode == "nftables" {
		c.m.kube.syncFailures.Collect(out)
		c.m.kube.cleanupFailures.Collect(out)
	}
}
