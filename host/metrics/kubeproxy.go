package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/model"
)

// kubeProxyMetrics are the metrics that kube-proxy has under the same names, with the same labels and meaning, so that
// dashboards and alerts made for it go on working. Those of one of its modes are there in that mode only.
type kubeProxyMetrics struct {
	sync, full, partial *prometheus.HistogramVec // ip_family
	last, lastQueued    *prometheus.GaugeVec     // ip_family
	programming         *prometheus.HistogramVec // ip_family
	endpointsPending    prometheus.Gauge
	endpointsTotal      prometheus.Counter
	servicesPending     prometheus.Gauge
	servicesTotal       prometheus.Counter
	noLocal             *prometheus.GaugeVec     // traffic_policy, ip_family
	healthz, livez      *prometheus.CounterVec   // code
	syncFailures        *prometheus.CounterVec   // ip_family, nftables only
	cleanupFailures     *prometheus.CounterVec   // ip_family, nftables only
	staleDuration       *prometheus.HistogramVec // ip_family
	staleDeleted        *prometheus.CounterVec   // ip_family
}

func newKubeProxyMetrics(r prometheus.Registerer) *kubeProxyMetrics {
	const subsystem = "kubeproxy"
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Subsystem: subsystem, Name: name, Help: help}
	}
	syncBuckets := prometheus.ExponentialBuckets(0.001, 2, 15)
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: buckets},
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
	inMode := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
		if len(labels) == 1 && labels[0] == "ip_family" {
			for _, f := range families {
				c.WithLabelValues(f.String())
			}
		}
		return c
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := inMode(name, help, labels...)
		r.MustRegister(c)
		return c
	}
	k := &kubeProxyMetrics{
		sync: histogram("sync_proxy_rules_duration_seconds",
			"Time to plan and program a change, or everything.", syncBuckets),
		full: histogram("sync_full_proxy_rules_duration_seconds",
			"Time to plan and program where everything was compared with the data plane.", syncBuckets),
		partial: histogram("sync_partial_proxy_rules_duration_seconds",
			"Time to plan and program where only what changed was written.", syncBuckets),
		last: gauge("sync_proxy_rules_last_timestamp_seconds",
			"When the data plane was last known to hold the plan, Unix time.", "ip_family"),
		lastQueued: gauge("sync_proxy_rules_last_queued_timestamp_seconds",
			"When a change was last queued, Unix time.", "ip_family"),
		programming: histogram("network_programming_duration_seconds",
			"Time from what led to a change of endpoints, as the annotation endpoints.kubernetes.io/last-change-trigger-time "+
				"of its EndpointSlice says, until the data plane holds the change.", programmingBuckets()),
		endpointsPending: gauge("sync_proxy_rules_endpoint_changes_pending",
			"Changes of EndpointSlices that the data plane does not hold yet.").WithLabelValues(),
		endpointsTotal: counter("sync_proxy_rules_endpoint_changes_total",
			"Changes of EndpointSlices seen.").WithLabelValues(),
		servicesPending: gauge("sync_proxy_rules_service_changes_pending",
			"Changes of Services that the data plane does not hold yet.").WithLabelValues(),
		servicesTotal: counter("sync_proxy_rules_service_changes_total",
			"Changes of Services seen.").WithLabelValues(),
		noLocal: gauge("sync_proxy_rules_no_local_endpoints_total",
			"Services with a traffic policy Local that have endpoints, but none on this node.", "traffic_policy", "ip_family"),
		healthz: counter("proxy_healthz_total", "Answers on /healthz, by HTTP status.", "code"),
		livez:   counter("proxy_livez_total", "Answers on /livez, by HTTP status.", "code"),
		staleDuration: histogram("conntrack_reconciler_sync_duration_seconds",
			"Time to find and delete the stale UDP entries of the connection table.", syncBuckets),
		staleDeleted: counter("conntrack_reconciler_deleted_entries_total",
			"Stale UDP entries deleted from the connection table.", "ip_family"),
	}
	k.syncFailures = inMode("sync_proxy_rules_nftables_sync_failures_total",
		"Failures to program nftables.", "ip_family")
	k.cleanupFailures = inMode("sync_proxy_rules_nftables_cleanup_failures_total",
		"Failures to take away what replaced objects left behind in nftables.", "ip_family")
	return k
}

// programmingBuckets are kube-proxy's: fine below a minute, coarse to five.
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
