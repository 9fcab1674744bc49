package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// sluiceMetrics are the sluice_ metrics that are updated by events.
type sluiceMetrics struct {
	planned, programmed, cleanedUp    prometheus.Observer    // the durations of the phases
	failures                          *prometheus.CounterVec // operation
	policyFailures                    prometheus.Counter     // of failures
	failuresByErrno                   *prometheus.CounterVec // errno
	evictedConnections                *prometheus.CounterVec // server
	messages, elements                prometheus.Counter
	connectionsReset, externalChanges prometheus.Counter
	connectionsShed, uncertainResets  prometheus.Counter
	unrepliedDeleted                  prometheus.Counter
	unrepliedOmitted                  prometheus.Counter
	staleOmitted                      prometheus.Counter
}

func newSluiceMetrics(r prometheus.Registerer) *sluiceMetrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice", Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	phases := prometheus.NewHistogramVec(native(prometheus.HistogramOpts{
		Namespace: "sluice", Name: "sync_phase_duration_seconds",
		Help: "Duration of a sync phase in seconds: plan (evaluates Services and policies), program (writes the data plane), " +
			"cleanup (deletes replaced objects).",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 13), // 0.1 ms to 6 s
	}), []string{"phase"})
	m := &sluiceMetrics{
		planned: phases.WithLabelValues("plan"), programmed: phases.WithLabelValues("program"), cleanedUp: phases.WithLabelValues("cleanup"),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "sluice", Name: "failures_total",
			Help: "Number of failed operations: program and cleanup (data plane), policy (evaluation), reset and shed (of connections), " +
				"conntrack (deletion of stale UDP flows and of connections without an answer), checkpoint (writing it), outcomes (reading those of connections), connections (counting open ones).",
		}, []string{"operation"}),
		failuresByErrno: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "sluice", Name: "backend_failures_total",
			Help: "Number of failed program and cleanup operations by the errno that the kernel returned, such as EBUSY; " +
				"other if it returned none.",
		}, []string{"errno"}),
		evictedConnections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "sluice", Name: "http_evicted_connections_total",
			Help: "Number of connections that a server closed because it had the maximum number: the oldest one of the client with the " +
				"most. The servers are healthz, metrics, and health_check_node_port for the health check ports of all Services.",
		}, []string{"server"}),
		messages:         counter("backend_messages_total", "Number of netlink messages sent to the kernel to program the data plane."),
		elements:         counter("backend_elements_total", "Number of elements added to and deleted from the data plane."),
		connectionsReset: counter("connections_reset_total", "Number of connections reset because the drain deadline of their endpoint had passed."),
		connectionsShed:  counter("connections_shed_total", "Number of established connections reset because a plugin has asked to shed part of an endpoint's connections."),
		uncertainResets: counter("uncertain_resets_total", "Number of TCP connections that were reset or shed, and may go on because the data plane had no room to remember "+
			"that: they go on if they are balanced to the same endpoint again."),
		unrepliedDeleted: counter("unreplied_connections_deleted_total", "Number of connections without an answer that were deleted from the connection tracking table "+
			"because their endpoint gets no new connections any more."),
		unrepliedOmitted: counter("unreplied_endpoints_omitted_total", "Number of endpoints of a frontend that got no new connections any more, and whose connections "+
			"without an answer were not deleted because too many endpoints did so at once."),
		staleOmitted:    counter("stale_udp_frontends_omitted_total", "Number of frontends that were gone and whose UDP flows were not deleted because too many went at once."),
		externalChanges: counter("external_changes_total", "Number of changes to sluice's data plane objects by other processes. Each is reverted."),
	}
	r.MustRegister(phases, m.failures, m.failuresByErrno, m.evictedConnections)
	for _, server := range []string{"healthz", "metrics", "health_check_node_port", "status_page", "state"} {
		m.evictedConnections.WithLabelValues(server)
	}
	for _, operation := range []string{"program", "cleanup", "policy", "reset", "shed", "conntrack", "checkpoint", "outcomes", "connections"} {
		m.failures.WithLabelValues(operation)
	}
	m.policyFailures = m.failures.WithLabelValues("policy")
	return m
}

// planState is the state that is reported at the next scrape.
type planState struct {
	planned                      bool // totals is set
	totals                       tally.Totals
	degraded, unprogrammed       int
	checkpoint                   time.Time
	omittedStates                int // of endpoints, in the checkpoint
	sourceErrors, sourceWarnings int
	counters                     []policy.Counter
}

// stateCollector reports planState at each scrape.
type stateCollector struct{ m *Metrics }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
}

// Descriptors of stateCollector.
var (
	descServices = desc("services", "Number of Services in the plan.")
	descFailing  = desc("policy_failing_services", "Number of Services whose policy fails.")
	descChoices  = desc("policy_annotations", "Number of Services with the annotation sluice.dev/policy, by state: in_force, not_found (there is no such policy), "+
		"not_allowed (Services of the namespace may not choose it). Unless it is in force, the policy that it has chosen before stays, or what applies without it.", "state")
	descLimited = desc("limited_services", "Number of Services of which something is left out: what exceeds serviceLimits, addresses that may not be endpoints, and annotations that are too long for the plugins that declare them.")
	descHolding = desc("panic_hold_services", "Number of Services whose policy holds endpoints that are not ready (panic).")
	descHints   = desc("topology_hints_ignored_services", "Number of Services with topology hints that are not followed, by reason: endpoint_without_hint, "+
		"not_for_this_zone (no ready endpoint is hinted for the zone of this node, or for the node), node_without_zone.", "reason")
	descHeld         = desc("panic_held_endpoints", "Number of endpoints of Service ports that count as ready although they are not (panic).")
	descConflicts    = desc("conflicting_frontends", "Number of frontends claimed by more than one Service, which belong to the one that takes precedence by kind of address, then age, then name; in mode ipvs also those at addresses of other hosts, which are not served.")
	descDegraded     = desc("degraded_frontends", "Number of frontends that the data plane can represent only approximately.")
	descUnprogrammed = desc("unprogrammed_frontends", "Number of frontends that are not programmed as planned because the kernel rejected "+
		"one of their updates. They are retried; other frontends are not affected.")
	descFrontends = desc("frontends", "Number of frontends in the plan.", "kind", "ip_family")
	descEndpoints = desc("endpoints", "Number of endpoints of Service ports by phase: active or draining.", "phase", "ip_family")
	descDecisions = desc("policy_decisions", "Number of decisions in effect, one per endpoint list of a Service port and IP family, by source: "+
		"policy, last_good (the policy failed), default (the policy failed, has only a shadow, or no endpoint is eligible).", "policy", "source")
	descDivergence = desc("policy_shadow_divergence_ratio", "Share of new connections that would go to other endpoints with the policy's shadow than "+
		"with what is in force: the mean over its Services.", "policy")
	descShadowed = desc("policy_shadow_services", "Number of Services by the state of their policy's shadow: compared (with what is in force), failing, "+
		"pending (a plugin has not answered yet). A Service may be in several.", "policy", "state")
	descGuard = desc("policy_guard", "State of the guard of a policy: 1 for the current one of baseline, in_force and fallen_back, and for blind while nothing is known of connections; 0 for the others.",
		"policy", "state")
	descFallbacks = desc("plugin_fallback_decisions", "Number of decisions in effect that replace the decision of a failing plugin, by source: "+
		"last_good or default.", "plugin", "source")
	descSettings = desc("service_settings", "Number of Services that set fields of their policy's settings, by state: in_force, or refused (the last good ones "+
		"or those of the policy are in force).", "state")
	descTexts = desc("plugin_service_settings_total", "Number of settings of Services that a plugin was asked about for the first time, by result: accepted, "+
		"refused, or throttled (calls that wait because new settings have used up their fuel).", "plugin", "result")
	descHandles    = desc("plugin_settings_handles", "Number of settings in the instances of a plugin.", "plugin")
	descRecycled   = desc("plugin_recycled_instances_total", "Number of instances of a plugin replaced by new ones because of the number or size of the settings in them.", "plugin")
	descCalls      = desc("plugin_calls_total", "Number of plugin calls.", "plugin")
	descFailures   = desc("plugin_failures_total", "Number of failed plugin calls.", "plugin")
	descExceeded   = desc("plugin_limit_exceeded_total", "Number of plugin calls that a limit ended: fuel or time (CPU time of the call).", "plugin", "limit")
	descFuel       = desc("plugin_fuel_total", "Fuel consumed by a plugin: WebAssembly instructions by cost.", "plugin")
	descLogDropped = desc("plugin_dropped_log_lines_total", "Number of log lines of a plugin dropped by the rate and size limits.", "plugin")
	descRepeats    = desc("plugin_repeated_calls_total", "Number of plugin calls chosen to be repeated in a second instance, by result: equal, "+
		"different (the plugin is suspended), failed (the second instance gave no answer), skipped (repeats had used up their fuel, or plugins the memory for more instances).", "plugin", "result")
	descRepeatFuel = desc("plugin_repeat_fuel_total", "Fuel consumed by repeated calls of a plugin.", "plugin")
	descInstances  = desc("plugin_instances", "Number of instances of a plugin.", "plugin")
	descEvicted    = desc("plugin_evicted_instances_total", "Number of instances of a plugin closed to make room for those of other namespaces.", "plugin")
	descMemory     = desc("plugin_memory_bytes", "Host memory of all instances of a plugin: compiled code, tables, guest memory.", "plugin")
	descAllMemory  = desc("plugins_memory_bytes", "Host memory of all plugins, with that of a compiling process.")
	descMemLimit   = desc("plugins_memory_limit_bytes", "Limit of plugins_memory_bytes (pluginLimits.memoryMiB).")
	descQueued     = desc("plugin_queued_calls", "Number of plugin calls that have not begun.", "plugin")
	descCPU        = desc("plugin_cpu_seconds_total", "CPU time used by plugin calls.", "plugin")
	descThrottled  = desc("plugin_throttled_seconds_total", "Time for which calls of a plugin have waited because it had used up its share of CPU time.", "plugin")
	descSuspended  = desc("plugin_suspended", "Number of Service ports, namespaces and settings for which a plugin is suspended after failures, "+
		"and whether it is for all (plugin), by scope.", "plugin", "scope")
	descCounters   = desc("plugin_counter_total", "Counters of a plugin that its manifest names, by policy (empty: of policies beyond the limit).", "policy", "plugin", "counter")
	descForgotten  = desc("plugin_forgotten_failures_total", "Number of failing Service ports of a plugin that were forgotten because there were too many.", "plugin")
	descCheckpoint = desc("checkpoint_last_success_timestamp_seconds", "Unix timestamp of the last time the checkpoint was written "+
		"or found to be up to date.")
	descOmittedStates = desc("checkpoint_omitted_endpoint_states", "Number of states of endpoints, which plugins keep, that the last checkpoint had no room for: "+
		"after a restart they begin anew.")
	descAffinityClients = desc("affinity_clients", "Number of clients whose endpoint is recorded for session affinity.", "ip_family")
	descAffinityFull    = desc("affinity_full_service_ports", "Number of Service ports with a client that was balanced without session affinity "+
		"in the last 5 minutes because there was no room to record its endpoint.")
	descProblems = desc("source_problems", "Number of problems in the current cluster state by severity: error (an object or field is ignored), warning.", "severity")
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descServices, descFailing, descChoices, descLimited, descHolding, descHeld, descHints, descConflicts, descDegraded, descUnprogrammed, descFrontends, descEndpoints,
		descDecisions, descDivergence, descShadowed, descServiceDivergence, descFallbacks, descGuard, descSettings, descTexts, descHandles, descRecycled, descCalls, descFailures, descExceeded, descFuel, descLogDropped, descMemory, descAllMemory, descMemLimit,
		descRepeats, descRepeatFuel, descInstances, descEvicted, descSuspended, descForgotten, descQueued, descCPU, descThrottled, descCheckpoint, descOmittedStates, descProblems,
		descAffinityClients, descAffinityFull, descServiceConnections, descPolicyConnections, descCounters, descLabels, descSignalSuccess, descSignalCPU, descSignalEndpoints, descUncounted, descStale, descRequests} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(out chan<- prometheus.Metric) {
	c.m.mu.Lock()
	s, source := c.m.state, c.m.source // the slices in it are never modified
	c.m.mu.Unlock()
	source.collect(out)
	value := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) { value(d, float64(n), labels...) }
	for i := range s.counters {
		n := &s.counters[i]
		out <- prometheus.MustNewConstMetric(descCounters, prometheus.CounterValue, float64(n.Total), n.Policy, n.Plugin, n.Counter)
	}
	gauge(descProblems, s.sourceErrors, "error")
	gauge(descProblems, s.sourceWarnings, "warning")
	if !s.checkpoint.IsZero() {
		value(descCheckpoint, seconds(s.checkpoint))
		gauge(descOmittedStates, s.omittedStates)
	}
	c.plugins(out)
	c.m.connections.collect(out)
	c.m.shadows.collect(out)
	if c.m.opt.Affinity != nil {
		if u := c.m.opt.Affinity(); u != nil {
			gauge(descAffinityFull, u.Full)
			if u.Counted {
				gauge(descAffinityClients, u.IPv4, model.IPv4.String())
				gauge(descAffinityClients, u.IPv6, model.IPv6.String())
			}
		}
	}
	if !s.planned {
		return
	}
	t := &s.totals
	gauge(descServices, t.Services)
	gauge(descFailing, t.Failing)
	gauge(descChoices, t.Choices[tally.ChoiceInForce], "in_force")
	gauge(descChoices, t.Choices[tally.ChoiceNotFound], "not_found")
	gauge(descChoices, t.Choices[tally.ChoiceNotAllowed], "not_allowed")
	gauge(descLimited, t.Limited)
	gauge(descHolding, t.Holding)
	gauge(descHeld, t.Held)
	gauge(descHints, t.HintsIgnored[eligibility.HintsMissing], "endpoint_without_hint")
	gauge(descHints, t.HintsIgnored[eligibility.HintsElsewhere], "not_for_this_zone")
	gauge(descHints, t.HintsIgnored[eligibility.HintsNodeWithoutZone], "node_without_zone")
	gauge(descSettings, t.OwnSettings, "in_force")
	gauge(descSettings, t.RefusedSettings, "refused")
	gauge(descConflicts, t.Conflicts)
	gauge(descDegraded, s.degraded)
	gauge(descUnprogrammed, s.unprogrammed)
	for _, f := range families {
		of := t.Family.At(f)
		for kind, n := range of.Frontends {
			gauge(descFrontends, n, kindLabels[kind], f.String())
		}
		for phase, n := range of.Endpoints {
			gauge(descEndpoints, n, phaseLabels[phase], f.String())
		}
	}
	for _, p := range t.Policies {
		for from, n := range p.Decisions {
			gauge(descDecisions, n, p.Policy, sourceLabels[from])
		}
		if of := &p.Shadow; of.Exists() {
			if of.Compared > 0 {
				value(descDivergence, of.Divergence(), p.Policy)
			}
			gauge(descShadowed, of.Compared, p.Policy, "compared")
			gauge(descShadowed, of.Failing, p.Policy, "failing")
			gauge(descShadowed, of.Pending, p.Policy, "pending")
		}
	}
	for _, g := range t.Guards {
		for phase, state := range guardLabels {
			value(descGuard, oneIf(int(g.Phase) == phase), g.Policy, state)
		}
		value(descGuard, oneIf(g.Blind), g.Policy, "blind")
	}
	for _, f := range t.Fallbacks {
		gauge(descFallbacks, f.LastGood, f.Plugin, sourceLabels[policy.FromLastGood])
		gauge(descFallbacks, f.Default, f.Plugin, sourceLabels[policy.FromDefault])
	}
}

func (c *stateCollector) plugins(out chan<- prometheus.Metric) {
	if c.m.opt.PluginMemory != nil {
		used, limit := c.m.opt.PluginMemory()
		out <- prometheus.MustNewConstMetric(descAllMemory, prometheus.GaugeValue, float64(used))
		out <- prometheus.MustNewConstMetric(descMemLimit, prometheus.GaugeValue, float64(limit))
	}
	if c.m.opt.Plugins == nil {
		return
	}
	for _, p := range c.m.opt.Plugins() {
		counter := func(d *prometheus.Desc, n uint64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{p.Plugin}, labels...)...)
		}
		counter(descCalls, p.Calls)
		counter(descFailures, p.Failures)
		out <- prometheus.MustNewConstMetric(descExceeded, prometheus.CounterValue, float64(p.OutOfFuel), p.Plugin, "fuel")
		out <- prometheus.MustNewConstMetric(descExceeded, prometheus.CounterValue, float64(p.Late), p.Plugin, "time")
		counter(descFuel, p.Fuel)
		counter(descLogDropped, p.LogDropped)
		counter(descRepeats, p.Repeats.Equal, "equal")
		counter(descRepeats, p.Repeats.Different, "different")
		counter(descRepeats, p.Repeats.Failed, "failed")
		counter(descRepeats, p.Repeats.Skipped, "skipped")
		counter(descRepeatFuel, p.RepeatFuel)
		counter(descEvicted, p.Evicted)
		counter(descTexts, p.Settings.Accepted, "accepted")
		counter(descTexts, p.Settings.Refused, "refused")
		counter(descTexts, p.Settings.Throttled, "throttled")
		counter(descRecycled, p.Settings.Recycled)
		out <- prometheus.MustNewConstMetric(descHandles, prometheus.GaugeValue, float64(p.Settings.Handles), p.Plugin)
		out <- prometheus.MustNewConstMetric(descInstances, prometheus.GaugeValue, float64(p.Instances), p.Plugin)
		out <- prometheus.MustNewConstMetric(descMemory, prometheus.GaugeValue, float64(p.MemoryBytes), p.Plugin)
		suspended := func(n int, scope string) {
			out <- prometheus.MustNewConstMetric(descSuspended, prometheus.GaugeValue, float64(n), p.Plugin, scope)
		}
		suspended(p.Suspended.Ports, "service_port")
		suspended(p.Suspended.Namespaces, "namespace")
		suspended(p.Suspended.Settings, "settings")
		suspended(p.Suspended.Modules, "plugin")
		counter(descForgotten, p.Suspended.Forgotten)
		out <- prometheus.MustNewConstMetric(descQueued, prometheus.GaugeValue, float64(p.Queued), p.Plugin)
		out <- prometheus.MustNewConstMetric(descCPU, prometheus.CounterValue, p.CPU.Seconds(), p.Plugin)
		out <- prometheus.MustNewConstMetric(descThrottled, prometheus.CounterValue, p.Throttled.Seconds(), p.Plugin)
	}
}

// Label values, indexed by the constants of their types.
var (
	kindLabels   = [...]string{plan.ClusterIP: "cluster_ip", plan.ExternalIP: "external_ip", plan.LoadBalancer: "load_balancer", plan.NodePort: "node_port"}
	guardLabels  = [...]string{policy.GuardBaseline: "baseline", policy.GuardInForce: "in_force", policy.GuardFallenBack: "fallen_back"}
	phaseLabels  = [...]string{plan.Active: "active", plan.Draining: "draining"}
	sourceLabels = [...]string{policy.FromDefault: "default", policy.FromChain: "policy", policy.FromLastGood: "last_good"}
)

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func formatCode(code int) string { return strconv.Itoa(code) }
