package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Configuration is what of the configuration is in force.
type Configuration struct {
	Hash        string
	Successful  bool      // the configuration file, as it is now, is in force
	SucceededAt time.Time // when a configuration file was last put into force
	Plugins     []PluginInForce
	Policies    []PolicyInForce
	ImagePulls  ImagePulls
	Objects     map[ObjectProblem]int
}

// ObjectProblem is why objects of sluice.dev, or their newest versions, are not in force.
type ObjectProblem struct{ Kind, Reason string }

// ImagePulls is how many pulls of modules from registries there were.
type ImagePulls struct{ Succeeded, Failed uint64 }

// PluginInForce is a plugin that policies use.
type PluginInForce struct {
	Plugin     string
	Digest     string // of its module; "": none is loaded
	LoadFailed bool   // the module or settings of the configuration are not in force
}

// PolicyInForce is a revision of a policy.
type PolicyInForce struct {
	Policy   string
	Revision string // "": a plugin is not loaded
}

// Descriptors of configurationCollector.
var (
	descConfigInfo    = desc("config_info", "Hash of the configuration in force: of all fields with their defaults, without hostnameOverride. Always 1.", "hash")
	descConfigSuccess = desc("config_last_reload_successful", "Whether the configuration file, as it is now, is in force (1), or an earlier one (0).")
	descConfigTime    = desc("config_last_reload_success_timestamp_seconds", "Unix timestamp of the last time that the configuration was read and is in force.")
	descPluginInfo    = desc("plugin_info", "Digest of the module file of a plugin that is in force. Always 1.", "plugin", "digest")
	descLoadFailed    = desc("plugin_load_failed", "Whether the module of a plugin, or settings of it, could not be loaded as configured (1), or are in force (0).", "plugin")
	descImagePulls    = desc("plugin_image_pulls_total", "Attempts to pull a module from a registry.", "result")
	descObjects       = desc("objects_not_in_force", "Objects of sluice.dev that this node cannot use, or whose newest version it cannot use.", "kind", "reason")
	descPolicyInfo    = desc("policy_info", "Revision of a policy; bindings with settings make further ones. Always 1.", "policy", "revision")
)

// configurationCollector reports what is in force at each scrape.
type configurationCollector struct{ read func() Configuration }

// Describe implements prometheus.Collector.
func (c *configurationCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConfigInfo, descConfigSuccess, descConfigTime, descPluginInfo, descLoadFailed, descImagePulls, descObjects, descPolicyInfo} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *configurationCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now := c.read()
	gauge(descConfigInfo, 1, now.Hash)
	gauge(descConfigSuccess, oneIf(now.Successful))
	gauge(descConfigTime, seconds(now.SucceededAt))
	for _, p := range now.Plugins {
		if p.Digest != "" {
			gauge(descPluginInfo, 1, p.Plugin, p.Digest)
		}
		gauge(descLoadFailed, oneIf(p.LoadFailed), p.Plugin)
	}
	for result, n := range map[string]uint64{"success": now.ImagePulls.Succeeded, "failure": now.ImagePulls.Failed} {
		out <- prometheus.MustNewConstMetric(descImagePulls, prometheus.CounterValue, float64(n), result)
	}
	for of, n := range now.Objects {
		gauge(descObjects, float64(n), of.Kind, of.Reason)
	}
	for _, p := range now.Policies {
		if p.Revision != "" {
			gauge(descPolicyInfo, 1, p.Policy, p.Revision)
		}
	}
}
