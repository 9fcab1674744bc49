package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
)

// sluiceMetrics are the sluice_ metrics that count what happens.
type sluiceMetrics struct {
	phaseDuration                     *prometheus.HistogramVec // phase
	failures                          *prometheus.CounterVec   // kind
	failuresByErrno                   *prometheus.CounterVec   // errno
	messages, elements                prometheus.Counter
	connectionsReset, externalChanges prometheus.Counter
}

func newSluiceMetrics(r prometheus.Registerer, o Options) *sluiceMetrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	m := &sluiceMetrics{
		phaseDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "sluice", Name: "sync_phase_duration_seconds",
			Help:    "Time of a phase: plan (rules and policies), program (the data plane), cleanup (of what was replaced).",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 13), // 0.1 ms to 6 s
		}, []string{"phase"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "sluice", Name: "failures_total",
			Help: "Failures: program, cleanup, policy, reset (of connections), conntrack (stale flows), checkpoint.",
		}, []string{"kind"}),
		failuresByErrno: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "sluice", Name: "backend_failures_total",
			Help: "Failures of the data plane by the kernel's reason, such as EBUSY; other when it gave none.",
		}, []string{"errno"}),
		messages:         counter("backend_messages_total", "Messages sent to the kernel."),
		elements:         counter("backend_elements_total", "Elements added to and deleted from the data plane."),
		connectionsReset: counter("connections_reset_total", "Connections reset because the deadline of their endpoint had passed."),
		externalChanges:  counter("foreign_changes_total", "Changes of sluice's own objects in the data plane by somebody else, all repaired."),
	}
	r.MustRegister(m.phaseDuration, m.failures, m.failuresByErrno)
	for _, phase := range []string{"plan", "program", "cleanup"} {
		m.phaseDuration.WithLabelValues(phase)
	}
	for _, kind := range []string{"program", "cleanup", "policy", "reset", "conntrack", "checkpoint"} {
		m.failures.WithLabelValues(kind)
	}
	return m
}

// planState is how things are now.
type planState struct {
	planned                      bool // totals are of a plan
	totals                       planner.Totals
	degraded, unprogrammed       int
	checkpoint                   time.Time
	sourceErrors, sourceWarnings int
}

// stateCollector gives the sluice_ metrics of how things are now, at each scrape.
type stateCollector struct{ m *Metrics }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
}

// The metrics of stateCollector.
var (
	descServices     = desc("services", "Services in the plan.")
	descFailing      = desc("policy_failing_services", "Services whose policy is not to be found or does not answer.")
	descConflicts    = desc("conflicting_frontends", "Frontends that a Service wants and an older one has.")
	descDegraded     = desc("degraded_frontends", "Frontends that the data plane cannot hold as they are wanted.")
	descUnprogrammed = desc("stuck_frontends", "Frontends that are not as planned, because the kernel refuses something of theirs. "+
		"They are tried again, and the others do not wait for them.")
	descFrontends = desc("frontends", "Frontends in the plan.", "kind", "ip_family")
	descEndpoints = desc("members", "Endpoints of Service ports that get new connections (active, warming) or are being "+
		"drained (draining).", "phase", "ip_family")
	descDecisions = desc("policy_decisions", "Decisions in force, one for each endpoint list of a Service port and family: "+
		"policy, last_good (as the policy fails), default (as it fails, or nothing is eligible), observe.", "policy", "from")
	descObserved   = desc("policy_observed_endpoints", "Endpoints that a policy decides about in mode Observe.", "policy")
	descDifference = desc("policy_observed_difference_ratio", "Part of the endpoints whose share of new connections would "+
		"differ by more than 1 % if the policy were enforced.", "policy")
	descFallbacks  = desc("plugin_fallbacks", "Decisions in force that hold because a plugin does not answer.", "plugin", "to")
	descCalls      = desc("plugin_calls_total", "Calls of a plugin.", "plugin")
	descFailures   = desc("plugin_failures_total", "Calls of a plugin that failed.", "plugin")
	descFuel       = desc("plugin_fuel_total", "Fuel used by a plugin: instructions, by weight.", "plugin")
	descLogDropped = desc("plugin_log_lines_dropped_total", "Lines of a plugin's log that went over its limits.", "plugin")
	descMemory     = desc("plugin_memory_bytes", "Memory of a plugin's instances.", "plugin")
	descSuspended  = desc("plugin_suspended", "1 while a plugin is left alone because it keeps failing.", "plugin")
	descCheckpoint = desc("checkpoint_last_success_timestamp_seconds", "When the checkpoint was last written, or found to be "+
		"up to date, Unix time.")
	descProblems = desc("source_problems", "Problems in the cluster state that was read, as it is now.", "severity")
)

// Describe implements prometheus.Collector. What is not described is checked when it is collected.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descServices, descFailing, descConflicts, descDegraded, descUnprogrammed, descFrontends, descEndpoints,
		descDecisions, descObserved, descDifference, descFallbacks, descCalls, descFailures, descFuel, descLogDropped, descMemory,
		descSuspended, descCheckpoint, descProblems, descStale, descRequests} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	c.m.mu.Lock()
	s, source := c.m.state, c.m.source // what its slices hold never changes
	c.m.mu.Unlock()
	source.collect(out)
	value := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) { value(d, float64(n), labels...) }
	gauge(descProblems, s.sourceErrors, "error")
	gauge(descProblems, s.sourceWarnings, "warning")
	if !s.checkpoint.IsZero() {
		value(descCheckpoint, seconds(s.checkpoint))
	}
	c.plugins(out)
	if !s.planned {
		return
	}
	t := &s.totals
	gauge(descServices, t.Services)
	gauge(descFailing, t.Failing)
	gauge(descConflicts, t.Conflicts)
	gauge(descDegraded, s.degraded)
	gauge(descUnprogrammed, s.unprogrammed)
	for _, f := range families {
		of := t.Family.At(f)
		for kind, n := range of.Frontends {
			gauge(descFrontends, n, kindLabels[kind], f.String())
		}
		for phase, n := range of.Members {
			gauge(descEndpoints, n, phaseLabels[phase], f.String())
		}
	}
	for _, p := range t.Policies {
		for from, n := range p.Decisions {
			gauge(descDecisions, n, p.Policy, fromLabels[from])
		}
		if p.Decisions[policy.FromObserve] > 0 {
			gauge(descObserved, p.Observed, p.Policy)
			value(descDifference, float64(p.Differ)/float64(max(1, p.Observed)), p.Policy)
		}
	}
	for _, f := range t.Fallbacks {
		gauge(descFallbacks, f.LastGood, f.Plugin, fromLabels[policy.FromLastGood])
		gauge(descFallbacks, f.Default, f.Plugin, fromLabels[policy.FromDefault])
	}
}

func (c *stateCollector) plugins(out chan<- prometheus.Metric) {
	if c.m.opt.Plugins == nil {
		return
	}
	for _, p := range c.m.opt.Plugins() {
		counter := func(d *prometheus.Desc, n uint64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), p.Plugin)
		}
		counter(descCalls, p.Calls)
		counter(descFailures, p.Failures)
		counter(descFuel, p.Fuel)
		counter(descLogDropped, p.LogDropped)
		suspended := 0.0
		if p.Suspended {
			suspended = 1
		}
		out <- prometheus.MustNewConstMetric(descMemory, prometheus.GaugeValue, float64(p.MemoryBytes), p.Plugin)
		out <- prometheus.MustNewConstMetric(descSuspended, prometheus.GaugeValue, suspended, p.Plugin)
	}
}

// Label values, by the numbers of their types.
var (
	kindLabels  = [...]string{plan.ClusterIP: "cluster_ip", plan.ExternalIP: "external_ip", plan.LoadBalancer: "load_balancer", plan.NodePort: "node_port"}
	phaseLabels = [...]string{plan.Active: "active", plan.Warming: "warming", plan.Draining: "draining"}
	fromLabels  = [...]string{policy.FromDefault: "default", policy.FromChain: "policy", policy.FromLastGood: "last_good", policy.FromObserve: "observe"}
)

func formatCode(code int) string { return strconv.Itoa(code) }
