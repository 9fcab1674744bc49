package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

var descInfo = desc("build_info", "The version of sluice and Go, and the current proxy mode. The value is always 1.", "version", "go_version", "mode")

// Mode is a proxy mode, as far as metrics differ between modes.
type Mode struct {
	Name     string // value of the label
	NFTables bool   // kube-proxy's metrics of its nftables mode are exported
}

// modeCollector reports metrics that depend on the proxy mode, which may change at run time: kube-proxy's nftables metrics
// are exported in that mode only.
type modeCollector struct{ m *Metrics }

// Describe implements prometheus.Collector.
func (c *modeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- descInfo
	c.m.kubeProxy.syncFailures.Describe(out)
	c.m.kubeProxy.cleanupFailures.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *modeCollector) Collect(out chan<- prometheus.Metric) {
	mode := c.m.opt.CurrentMode()
	out <- prometheus.MustNewConstMetric(descInfo, prometheus.GaugeValue, 1, c.m.opt.Version, runtime.Version(), mode.Name)
	if mode.NFTables {
		c.m.kubeProxy.syncFailures.Collect(out)
		c.m.kubeProxy.cleanupFailures.Collect(out)
	}
}
