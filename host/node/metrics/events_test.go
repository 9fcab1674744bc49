package metrics_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestPolicyAndPluginMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugins = []metrics.PluginStats{{Plugin: "uneven", Calls: 7, Failures: 2, OutOfFuel: 1, Late: 1, Fuel: 900, LogDropped: 3, MemoryBytes: 65536,
			Suspended: metrics.PluginSuspended{Ports: 5, Namespaces: 3, Settings: 2, Modules: 1, Forgotten: 4}}}
		r.start()
		r.emit(service("a", 1, withPolicy("enforce")), endpoints("a", never, "n1", "n2"),
			service("b", 2, withPolicy("watch")), endpoints("b", never, "n1", "n2", "n3", "n1"),
			service("c", 3, withPolicy("watch")), endpoints("c", never, "n1"), synced)
		r.settle()
		r.want("all plugins succeed", map[string]float64{
			"sluice_policy_decisions{policy=enforce,source=policy}":            1,
			"sluice_policy_decisions{policy=watch,source=default}":             2,
			"sluice_policy_shadow_divergence_ratio{policy=watch}":              0.125, // the mean of b, and of c with its only endpoint
			"sluice_policy_shadow_divergence_ratio{policy=enforce}":            -1,
			"sluice_policy_shadow_services{policy=watch,state=compared}":       2,
			"sluice_policy_shadow_services{policy=watch,state=failing}":        0,
			"sluice_policy_shadow_services{policy=watch,state=pending}":        0,
			"sluice_policy_shadow_services{policy=enforce,state=compared}":     -1,
			"sluice_service_shadow_divergence_ratio{namespace=shop,service=b}": 0.25,
			"sluice_service_shadow_divergence_ratio{namespace=shop,service=c}": 0,
			"sluice_service_shadow_divergence_ratio{namespace=shop,service=a}": -1,
			"sluice_policy_failing_services":                                   0,
			"sluice_plugin_fallback_decisions{plugin=uneven,source=last_good}": -1,
			"sluice_plugin_calls_total{plugin=uneven}":                         7,
			"sluice_plugin_failures_total{plugin=uneven}":                      2,
			"sluice_plugin_limit_exceeded_total{limit=fuel,plugin=uneven}":     1,
			"sluice_plugin_limit_exceeded_total{limit=time,plugin=uneven}":     1,
			"sluice_plugin_fuel_total{plugin=uneven}":                          900,
			"sluice_plugin_dropped_log_lines_total{plugin=uneven}":             3,
			"sluice_plugin_memory_bytes{plugin=uneven}":                        65536,
			"sluice_plugin_suspended{plugin=uneven,scope=service_port}":        5,
			"sluice_plugin_suspended{plugin=uneven,scope=namespace}":           3,
			"sluice_plugin_suspended{plugin=uneven,scope=settings}":            2,
			"sluice_plugin_suspended{plugin=uneven,scope=plugin}":              1,
			"sluice_plugin_forgotten_failures_total{plugin=uneven}":            4,
		})
		r.plugin.set(errors.New("unavailable"))
		r.emit(endpoints("a", never, "n1", "n2", "n3"), service("d", 4, withPolicy("enforce")), endpoints("d", never, "n1"))
		r.settle()
		r.want("the plugin fails", map[string]float64{
			"sluice_policy_decisions{policy=enforce,source=policy}":            0,
			"sluice_policy_decisions{policy=enforce,source=last_good}":         1,
			"sluice_policy_decisions{policy=enforce,source=default}":           1,
			"sluice_plugin_fallback_decisions{plugin=uneven,source=last_good}": 1,
			"sluice_plugin_fallback_decisions{plugin=uneven,source=default}":   1,
			"sluice_policy_failing_services":                                   2,
			"sluice_failures_total{operation=policy}":                          2,
		})
	})
}

func TestConflictDegradationAndNoLocalEndpointMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.caps.Ratios, r.caps.MaxTotal = true, 2
		r.start()
		shared := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		r.emit(service("a", 1, func(s *model.Service) { s.ExternalIPs, s.Created = shared, 1; withPolicy("enforce")(s) }), endpoints("a", never, "n1", "n2", "n1"),
			service("b", 2, func(s *model.Service) { s.ExternalIPs, s.Created, s.InternalLocal = shared, 2, true }), endpoints("b", never, "n1"),
			synced)
		r.settle()
		r.want("two Services claim one address; weights 3, 1, 1 do not fit in 2 slots", map[string]float64{
			"sluice_conflicting_frontends": 1,
			"sluice_degraded_frontends":    2,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=IPv4,traffic_policy=internal}": 1,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=IPv4,traffic_policy=external}": 0,
		})
		r.emit(model.Change{Kind: model.ServiceKind, Name: name("a")})
		r.settle()
		r.want("one Service deleted", map[string]float64{"sluice_conflicting_frontends": 0, "sluice_degraded_frontends": 0,
			"sluice_frontends{ip_family=IPv4,kind=external_ip}": 1})
	})
}

func TestConntrackCheckpointAndSourceProblemMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.checkpoint.set(errors.New("disk full"))
		r.start()
		dns := func(s *model.Service) { s.Ports[0] = model.ServicePort{Protocol: model.UDP, Port: 53} }
		begin := time.Now()
		r.emit(service("dns", 1, dns), endpoints("dns", never, "n1", "n2"), synced)
		r.advance(1500 * time.Millisecond)
		r.want("flows of a new UDP Service port are checked; the checkpoint fails", map[string]float64{
			"kubeproxy_conntrack_reconciler_sync_duration_seconds_count" + v4: 1,
			"kubeproxy_conntrack_reconciler_sync_duration_seconds_sum" + v4:   0.003,
			"kubeproxy_conntrack_reconciler_deleted_entries_total" + v4:       5,
			"kubeproxy_conntrack_reconciler_deleted_entries_total" + v6:       0,
			"sluice_failures_total{operation=checkpoint}":                     1,
			"sluice_checkpoint_last_success_timestamp_seconds":                -1,
			"sluice_failures_total{operation=conntrack}":                      0,
			"sluice_source_problems{severity=error}":                          0,
		})
		r.checkpoint.set(nil)
		r.conns.set(errors.New("no conntrack"))
		r.metrics.SetSourceProblems(3, 1)
		r.emit(endpoints("dns", never, "n1"))
		r.advance(2 * time.Second)
		got := values(t, r.metrics)
		if at := got["sluice_checkpoint_last_success_timestamp_seconds"]; at < float64(begin.Unix())+2 || at > float64(begin.Unix())+4 {
			t.Errorf("checkpoint at %v, began at %d", at, begin.Unix())
		}
		if got["sluice_failures_total{operation=conntrack}"] < 1 {
			t.Error("the conntrack failure is not counted")
		}
		r.want("source problems", map[string]float64{
			"sluice_source_problems{severity=error}": 3, "sluice_source_problems{severity=warning}": 1,
		})
		r.metrics.OnEvent(engine.Event{Kind: engine.ConnectionsReset, Count: 4, Omitted: 3})
		r.metrics.OnEvent(engine.Event{Kind: engine.ConnectionsShed, Count: 5, Omitted: 2})
		r.metrics.OnEvent(engine.Event{Kind: engine.ConnectionsReset, Err: errors.New("no")})
		r.want("resets", map[string]float64{"sluice_connections_reset_total": 4, "sluice_connections_shed_total": 5, "sluice_uncertain_resets_total": 5, "sluice_failures_total{operation=reset}": 1})
		r.metrics.OnEvent(engine.Event{Kind: engine.UnrepliedDeleted, Count: 7, Omitted: 2})
		r.want("unreplied", map[string]float64{"sluice_unreplied_connections_deleted_total": 7, "sluice_unreplied_endpoints_omitted_total": 2})
		r.metrics.OnEvent(engine.Event{Kind: engine.UDPFlowsKept, Count: 9})
		r.metrics.OnEvent(engine.Event{Kind: engine.StaleFlowsDeleted, Family: model.IPv4, Omitted: 4})
		r.want("UDP", map[string]float64{"kubeproxy_preserved_udp_conntrack_flows_total": 9, "sluice_stale_udp_frontends_omitted_total": 4})
		r.metrics.OnEvent(engine.Event{Kind: engine.DriftDetected, Count: 3})
		r.want("drift", map[string]float64{"sluice_external_changes_total": 3})
	})
}
