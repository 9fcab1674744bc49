package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// kubeProxyMetrics have the names, labels and meaning of kube-proxy's metrics, so that existing dashboards and alerts work
// unchanged. Metrics of one of kube-proxy's modes are exported in that mode only.
type kubeProxyMetrics struct {
	sync, full, partial byFamily[prometheus.Observer]
	last, lastQueued    byFamily[prometheus.Gauge]
	programming         byFamily[prometheus.Observer]
	endpointsPending    prometheus.Gauge
	endpointsTotal      prometheus.Counter
	servicesPending     prometheus.Gauge
	servicesTotal       prometheus.Counter
	noLocal             struct{ internal, external byFamily[prometheus.Gauge] }
	healthz, livez      *prometheus.CounterVec   // code
	syncFailures        *prometheus.CounterVec   // ip_family, nftables only
	cleanupFailures     *prometheus.CounterVec   // ip_family, nftables only
	staleDuration       *prometheus.HistogramVec // ip_family
	staleDeleted        *prometheus.CounterVec   // ip_family
	preserved           prometheus.Gauge
	deferred, flushed   prometheus.Counter
}

// byFamily are the metrics of a vector by IP family, each looked up once: a lookup costs more than what is done with the metric.
// A metric is exported from its first use on. It is not safe for concurrent use.
type byFamily[T any] struct {
	lookUp func(labels ...string) T
	found  [len(families)]bool
	all    [len(families)]T
}

func (b *byFamily[T]) of(f model.Family) T {
	i := familyIndex(f)
	if !b.found[i] {
		b.found[i], b.all[i] = true, b.lookUp(f.String())
	}
	return b.all[i]
}

func newKubeProxyMetrics(r prometheus.Registerer) *kubeProxyMetrics {
	const subsystem = "kubeproxy"
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Subsystem: subsystem, Name: name, Help: help}
	}
	syncBuckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(native(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}),
			[]string{"ip_family"})
		r.MustRegister(h)
		for _, f := range families {
			h.WithLabelValues(f.String())
		}
		return h
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts(opts(name, help)), labels)
		r.MustRegister(g)
		return g
	}
	unregistered := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
		if len(labels) == 1 && labels[0] == "ip_family" {
			for _, f := range families {
				c.WithLabelValues(f.String())
			}
		}
		return c
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := unregistered(name, help, labels...)
		r.MustRegister(c)
		return c
	}
	observers := func(name, help string, buckets []float64) byFamily[prometheus.Observer] {
		return byFamily[prometheus.Observer]{lookUp: histogram(name, help, buckets).WithLabelValues}
	}
	gauges := func(name, help string) byFamily[prometheus.Gauge] {
		return byFamily[prometheus.Gauge]{lookUp: gauge(name, help, "ip_family").WithLabelValues}
	}
	noLocal := gauge("sync_proxy_rules_no_local_endpoints_total",
		"Number of Services with traffic policy Local that have endpoints but none on this node.", "traffic_policy", "ip_family")
	noLocalOf := func(policy string) byFamily[prometheus.Gauge] {
		return byFamily[prometheus.Gauge]{lookUp: noLocal.MustCurryWith(prometheus.Labels{"traffic_policy": policy}).WithLabelValues}
	}
	k := &kubeProxyMetrics{
		sync: observers("sync_proxy_rules_duration_seconds",
			"Duration of planning and programming in seconds, of full and partial syncs.", syncBuckets),
		full: observers("sync_full_proxy_rules_duration_seconds",
			"Duration of planning and programming in seconds, of syncs that compare the whole plan with the data plane.", syncBuckets),
		partial: observers("sync_partial_proxy_rules_duration_seconds",
			"Duration of planning and programming in seconds, of syncs that write only changes.", syncBuckets),
		last: gauges("sync_proxy_rules_last_timestamp_seconds",
			"Unix timestamp of the last time the data plane was known to match the plan."),
		lastQueued: gauges("sync_proxy_rules_last_queued_timestamp_seconds",
			"Unix timestamp of the last time a change was queued."),
		programming: observers("network_programming_duration_seconds",
			"Time from the trigger of an endpoint change, taken from the annotation endpoints.kubernetes.io/last-change-trigger-time "+
				"of its EndpointSlice, until the change is programmed, in seconds.", programmingBuckets()),
		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending",
			"Number of EndpointSlice changes that are not programmed yet.").WithLabelValues(),
		endpointsTotal: counter("sync_proxy_rules_endpoint_changes_total",
			"Number of EndpointSlice changes received.").WithLabelValues(),
		servicesPending: gauge("sync_proxy_rules_service_changes_pending",
			"Number of Service changes that are not programmed yet.").WithLabelValues(),
		servicesTotal: counter("sync_proxy_rules_service_changes_total",
			"Number of Service changes received.").WithLabelValues(),
		healthz: counter("proxy_healthz_total", "Number of /healthz responses by HTTP status code.", "code"),
		livez:   counter("proxy_livez_total", "Number of /livez responses by HTTP status code.", "code"),
		staleDuration: histogram("conntrack_reconciler_sync_duration_seconds",
			"Duration of finding and deleting stale UDP conntrack entries in seconds.", syncBuckets),
		staleDeleted: counter("conntrack_reconciler_deleted_entries_total",
			"Number of stale UDP conntrack entries deleted.", "ip_family"),
		preserved: gauge("preserved_udp_conntrack_flows_total",
			"Number of UDP flows that are kept for endpoints that terminate and do not serve, as of the last count.").WithLabelValues(),
		deferred: counter("conntrack_cleanup_deferred_total",
			"Number of endpoints that stopped serving and whose UDP flows are kept while they terminate.").WithLabelValues(),
		flushed: counter("conntrack_safety_valve_flushes_total",
			"Number of endpoints that still terminate and whose UDP flows have been kept for as long as they may.").WithLabelValues(),
	}
	k.noLocal.internal, k.noLocal.external = noLocalOf("internal"), noLocalOf("external")
	k.syncFailures = unregistered("sync_proxy_rules_nftables_sync_failures_total",
		"Number of failures to program nftables.", "ip_family")
	k.cleanupFailures = unregistered("sync_proxy_rules_nftables_cleanup_failures_total",
		"Number of failures to delete replaced objects from nftables.", "ip_family")
	return k
}

// programmingBuckets returns kube-proxy's buckets: 1 s wide below one minute, up to 30 s wide below five minutes.
func programmingBuckets() []float64 {
	out := []float64{0.25, 0.5}
	for _, r := range []struct{ from, to, step float64 }{{1, 60, 1}, {60, 120, 5}, {120, 300, 30}} {
		for v := r.from; v < r.to; v += r.step {
			out = append(out, v)
		}
	}
	return append(out, 300)
}

var families = [...]model.Family{model.IPv4, model.IPv6}

func familyIndex(f model.Family) int {
	if f == model.IPv6 {
		return 1
	}
	return 0
}
