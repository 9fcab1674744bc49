package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// ipvsStats is a fake of the IPVS statistics that counts how often it is read.
type ipvsStats struct {
	servers  []metrics.IPVSVirtualServer
	disabled bool
	err      error
	reads    int
	now      time.Time
}

func (g *ipvsStats) metrics() *metrics.Metrics {
	g.now = time.Unix(1_700_000_000, 0)
	return metrics.New(metrics.Options{Mode: metrics.Mode{Name: "ipvs"}, Now: func() time.Time { return g.now },
		IPVS: func() ([]metrics.IPVSVirtualServer, bool, error) {
			g.reads++
			g.now = g.now.Add(250 * time.Millisecond)
			return g.servers, !g.disabled, g.err
		}})
}

func ipvsOnly(all map[string]float64) map[string]float64 {
	for n := range all {
		if !strings.HasPrefix(n, "sluice_ipvs_") {
			delete(all, n)
		}
	}
	return all
}

var busy = metrics.IPVSVirtualServer{
	Address: "10.96.0.80:80/TCP", Pool: "all", Namespace: "shop", Service: "web", Port: "http", Scheduler: "wrr",
	RealServers: 3, DrainingRealServers: 1, ActiveConnections: 2, InactiveConnections: 7, Connections: 40, PacketsIn: 20, PacketsOut: 16, BytesIn: 1 << 40, BytesOut: 1600,
}

func TestIPVSMetricsOfEachVirtualServer(t *testing.T) {
	retiring := metrics.IPVSVirtualServer{Address: "fwmark 0x5ce00001 IPv4", Scheduler: "wlc", RealServers: 1, DrainingRealServers: 1, ActiveConnections: 1}
	g := &ipvsStats{servers: []metrics.IPVSVirtualServer{busy, retiring}}
	got := ipvsOnly(values(t, g.metrics()))
	at := "{namespace=shop,pool=all,port=http,service=web,virtual_server=10.96.0.80:80/TCP}"
	directional := func(name, direction string) string {
		return "sluice_ipvs_" + name + "{direction=" + direction + "," + at[1:]
	}
	want := map[string]float64{
		"sluice_ipvs_active_connections" + at: 2, "sluice_ipvs_inactive_connections" + at: 7,
		"sluice_ipvs_connections_total" + at: 40, "sluice_ipvs_real_servers" + at: 3, "sluice_ipvs_draining_real_servers" + at: 1,
		directional("packets_total", "in"): 20, directional("packets_total", "out"): 16,
		directional("bytes_total", "in"): 1 << 40, directional("bytes_total", "out"): 1600,
		"sluice_ipvs_scheduler_info{namespace=shop,pool=all,port=http,scheduler=wrr,service=web,virtual_server=10.96.0.80:80/TCP}": 1,
		"sluice_ipvs_draining_real_servers{namespace=,pool=,port=,service=,virtual_server=fwmark 0x5ce00001 IPv4}":                 1,
		"sluice_ipvs_scheduler_info{namespace=,pool=,port=,scheduler=wlc,service=,virtual_server=fwmark 0x5ce00001 IPv4}":          1,
		"sluice_ipvs_omitted_virtual_servers": 0, "sluice_ipvs_read_success": 1, "sluice_ipvs_read_duration_seconds": 0.25,
	}
	for n, v := range want {
		if g, ok := got[n]; !ok || g != v {
			t.Errorf("%s: %v, want %v", n, g, v)
		}
	}
	if len(got) != 2*10+3 {
		t.Errorf("%d samples: %v", len(got), got)
	}
}

func TestIPVSStatisticsAreCachedAndReadOnlyIfEnabled(t *testing.T) {
	g := &ipvsStats{disabled: true}
	m := g.metrics()
	if got := ipvsOnly(values(t, m)); len(got) != 0 {
		t.Errorf("exported although disabled: %v", got)
	}
	g.disabled, g.reads, g.servers = false, 0, []metrics.IPVSVirtualServer{busy}
	for range 4 {
		if got := ipvsOnly(values(t, m)); len(got) != 10+3 {
			t.Errorf("%v", got)
		}
		g.now = g.now.Add(3 * time.Second)
	}
	if g.reads != 1 {
		t.Errorf("read %d times in 9 s", g.reads)
	}
	g.err = errors.New("no socket")
	if got := ipvsOnly(values(t, m)); g.reads != 2 || len(got) != 2 || got["sluice_ipvs_read_success"] != 0 {
		t.Errorf("read %d times in 12 s, without success: %v", g.reads, got)
	}
}

func TestIPVSMetricsAreLimitedTo5000VirtualServers(t *testing.T) {
	g := &ipvsStats{}
	for i := range 5002 {
		s := busy
		s.Address = fmt.Sprintf("10.96.%d.%d:80/TCP", i>>8, i&255)
		g.servers = append(g.servers, s)
	}
	got := ipvsOnly(values(t, g.metrics()))
	if len(got) != 5000*10+3 || got["sluice_ipvs_omitted_virtual_servers"] != 2 {
		t.Errorf("%d samples, %v omitted", len(got), got["sluice_ipvs_omitted_virtual_servers"])
	}
}

func TestIPVSMetricNames(t *testing.T) {
	g := &ipvsStats{servers: []metrics.IPVSVirtualServer{busy}}
	checkNames(t, g.metrics(), map[string]string{
		"kubeproxy_preserved_udp_conntrack_flows_total": `non-counter metrics should not have "_total" suffix`,
	})
}
