package metrics_test

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestSyncMetricsOfAScriptedSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		begin := time.Now()
		r.emit(service("a", 1, nil), endpoints("a", begin.Add(-time.Hour), "n1"), synced)
		r.settle()
		unix := func(at time.Time) float64 { return float64(at.UnixNano()) / 1e9 }
		r.want("first sync: full, triggers older than the process", map[string]float64{
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v4:                                     1,
			"kubeproxy_sync_proxy_rules_duration_seconds_sum" + v4:                                       0.005,
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v6:                                     0,
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4:                                1,
			"kubeproxy_sync_partial_proxy_rules_duration_seconds_count" + v4:                             0,
			"kubeproxy_network_programming_duration_seconds_count" + v4:                                  0,
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" + v4:                              unix(begin),
			"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" + v6:                              -1,
			"kubeproxy_sync_proxy_rules_last_timestamp_seconds" + v4:                                     unix(begin.Add(5 * time.Millisecond)),
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":                                          1,
			"kubeproxy_sync_proxy_rules_service_changes_total":                                           1,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":                                        0,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v4:                               0,
			"sluice_sync_phase_duration_seconds_count{phase=plan}":                                       1,
			"sluice_sync_phase_duration_seconds_sum{phase=program}":                                      0.005,
			"sluice_backend_messages_total":                                                              float64(r.kernel.Stats().Messages),
			"sluice_services":                                                                            1,
			"sluice_frontends{ip_family=IPv4,kind=cluster_ip}":                                           1,
			"sluice_endpoints{ip_family=IPv4,phase=active}":                                              1,
			"sluice_build_info{go_version=" + goVersion(t, r.metrics) + ",mode=nftables,version=v0.1.0}": 1,
		})

		// A change that was triggered 2 s ago; while it is programmed it is pending.
		r.advance(10 * time.Second)
		r.feed <- []model.Change{endpoints("a", time.Now().Add(-2*time.Second), "n1", "n2")}
		r.advance(time.Millisecond)
		r.want("while programming", map[string]float64{
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending": 1,
			"kubeproxy_sync_proxy_rules_service_changes_pending":  0,
		})
		r.settle()
		r.want("after one change", map[string]float64{
			"kubeproxy_sync_partial_proxy_rules_duration_seconds_count" + v4: 1,
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4:    1,
			"kubeproxy_network_programming_duration_seconds_count" + v4:      1,
			"kubeproxy_network_programming_duration_seconds_sum" + v4:        2.005,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":            0,
			"kubeproxy_sync_proxy_rules_endpoint_changes_total":              2,
			"sluice_endpoints{ip_family=IPv4,phase=active}":                  2,
		})

		// Linger is 1 s: the backend returned RequeueAfter, and that Apply does not count as a sync.
		r.advance(2 * time.Second)
		r.want("cleanup", map[string]float64{
			"sluice_sync_phase_duration_seconds_count{phase=cleanup}": 1,
			"kubeproxy_sync_proxy_rules_duration_seconds_count" + v4:  2,
		})

		// The kernel rejects the update; retries follow after 20 ms, 40 ms, …
		r.fail.set(syscall.ENOBUFS)
		r.emit(endpoints("a", time.Now(), "n1", "~n2"))
		r.settle()
		r.want("rejected once", map[string]float64{
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v4: 1,
			"kubeproxy_sync_proxy_rules_nftables_sync_failures_total" + v6: 0,
			"sluice_failures_total{operation=program}":                     1,
			"sluice_backend_failures_total{errno=ENOBUFS}":                 1,
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":          1,
			"kubeproxy_network_programming_duration_seconds_count" + v4:    1,
		})
		r.fail.set(nil)
		r.advance(100 * time.Millisecond)
		r.want("programmed after retries", map[string]float64{
			"kubeproxy_sync_proxy_rules_endpoint_changes_pending":         0,
			"kubeproxy_network_programming_duration_seconds_count" + v4:   2,
			"kubeproxy_network_programming_duration_seconds_sum" + v4:     2.005 + 0.030, // 5 ms, 20 ms of backoff, 5 ms
			"kubeproxy_sync_full_proxy_rules_duration_seconds_count" + v4: 2,
			"sluice_endpoints{ip_family=IPv4,phase=active}":               1,
			"sluice_endpoints{ip_family=IPv4,phase=draining}":             1,
		})

		r.emit(model.Change{Kind: model.ServiceKind, Name: name("a")}, model.Change{Kind: model.SliceKind, Name: name("a")})
		r.settle()
		r.want("everything deleted", map[string]float64{
			"sluice_services": 0, "sluice_frontends{ip_family=IPv4,kind=cluster_ip}": 0,
			"sluice_endpoints{ip_family=IPv4,phase=active}": 0, "sluice_endpoints{ip_family=IPv4,phase=draining}": 0,
			"kubeproxy_sync_proxy_rules_service_changes_total": 2,
		})
	})
}
