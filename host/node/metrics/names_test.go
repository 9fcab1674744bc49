package metrics_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// TestKubeProxyMetricNamesLabelsAndBuckets checks the 17 metrics of kube-proxy's nftables mode, which
// existing dashboards and alerts rely on.
func TestKubeProxyMetricNamesLabelsAndBuckets(t *testing.T) {
	type shape struct {
		kind    string
		labels  string
		buckets int
	}
	want := map[string]shape{
		"sync_proxy_rules_duration_seconds":                {histogram, "ip_family", 15},
		"sync_full_proxy_rules_duration_seconds":           {histogram, "ip_family", 15},
		"sync_partial_proxy_rules_duration_seconds":        {histogram, "ip_family", 15},
		"sync_proxy_rules_last_timestamp_seconds":          {gauge, "ip_family", 0},
		"sync_proxy_rules_last_queued_timestamp_seconds":   {gauge, "ip_family", 0},
		"network_programming_duration_seconds":             {histogram, "ip_family", 2 + 59 + 12 + 7},
		"sync_proxy_rules_endpoint_changes_pending":        {gauge, "", 0},
		"sync_proxy_rules_endpoint_changes_total":          {counter, "", 0},
		"sync_proxy_rules_service_changes_pending":         {gauge, "", 0},
		"sync_proxy_rules_service_changes_total":           {counter, "", 0},
		"sync_proxy_rules_no_local_endpoints_total":        {gauge, "ip_family traffic_policy", 0},
		"proxy_healthz_total":                              {counter, "code", 0},
		"proxy_livez_total":                                {counter, "code", 0},
		"sync_proxy_rules_nftables_sync_failures_total":    {counter, "ip_family", 0},
		"sync_proxy_rules_nftables_cleanup_failures_total": {counter, "ip_family", 0},
		"conntrack_reconciler_sync_duration_seconds":       {histogram, "ip_family", 15},
		"conntrack_reconciler_deleted_entries_total":       {counter, "ip_family", 0},
		"preserved_udp_conntrack_flows_total":              {gauge, "", 0},
		"conntrack_cleanup_deferred_total":                 {counter, "", 0},
		"conntrack_safety_valve_flushes_total":             {counter, "", 0},
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.emit(service("a", 1, nil), endpoints("a", never, "n1"), synced)
		r.settle()
		r.metrics.CountHealthCheck("/healthz", 200)
		r.metrics.CountHealthCheck("/livez", 503)
		families, err := r.metrics.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, f := range families {
			short, ours := strings.CutPrefix(f.GetName(), "kubeproxy_")
			if !ours {
				continue
			}
			seen++
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			got := shape{f.GetType().String(), strings.Join(labels, " "), len(f.Metric[0].GetHistogram().GetBucket())}
			if w, ok := want[short]; !ok || got != w {
				t.Errorf("%s: %+v, want %+v", f.GetName(), got, w)
			}
			if short == "network_programming_duration_seconds" {
				var bounds []float64
				for _, b := range f.Metric[0].Histogram.Bucket {
					bounds = append(bounds, b.GetUpperBound())
				}
				checkProgrammingBuckets(t, bounds)
			}
		}
		if seen != len(want) {
			t.Errorf("%d metrics, want %d", seen, len(want))
		}
		r.want("health", map[string]float64{"kubeproxy_proxy_healthz_total{code=200}": 1, "kubeproxy_proxy_livez_total{code=503}": 1})
	})
}

func checkProgrammingBuckets(t *testing.T, bounds []float64) {
	var want []float64
	want = append(want, 0.25, 0.5)
	for v := 1; v <= 59; v++ {
		want = append(want, float64(v))
	}
	for v := 60; v <= 115; v += 5 {
		want = append(want, float64(v))
	}
	for v := 120; v <= 300; v += 30 {
		want = append(want, float64(v))
	}
	if !slices.Equal(bounds, want) {
		t.Errorf("network programming buckets %v", bounds)
	}
}

// TestMetricNames exempts the names that kube-proxy chose against the conventions.
func TestMetricNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugins = []metrics.PluginStats{{Plugin: "uneven"}}
		r.configuration = inForce
		r.start()
		r.emit(service("a", 1, withPolicy("watch")), endpoints("a", time.Now().Add(time.Millisecond), "n1"), synced)
		r.advance(3 * time.Second)
		r.metrics.CountHealthCheck("/healthz", 200)
		checkNames(t, r.metrics, map[string]string{
			"kubeproxy_preserved_udp_conntrack_flows_total":       `non-counter metrics should not have "_total" suffix`,
			"kubeproxy_sync_proxy_rules_no_local_endpoints_total": `non-counter metrics should not have "_total" suffix`,
		})
	})
}

var (
	readmeHeader = regexp.MustCompile(`^\| name: (\w+_)… `)
	readmeRow    = regexp.MustCompile(`^\| ([\w, ]+) \| (counter|gauge|histogram) \|`)
)

// checkNames checks that promlint accepts all metrics of sluice and kube-proxy, with the given exceptions, and that the
// README documents them with their type.
func checkNames(t *testing.T, m *metrics.Metrics, exceptions map[string]string) {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, prefix := map[string]string{}, ""
	for line := range strings.Lines(string(readme)) {
		if m := readmeHeader.FindStringSubmatch(line); m != nil {
			prefix = m[1]
		} else if m := readmeRow.FindStringSubmatch(line); m != nil {
			for name := range strings.SplitSeq(m[1], ", ") {
				documented[prefix+name] = strings.ToUpper(m[2])
			}
		}
	}
	families, err := m.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	own := families[:0]
	for _, f := range families { // not those of the client library
		if name := f.GetName(); strings.HasPrefix(name, "sluice_") || strings.HasPrefix(name, "kubeproxy_") {
			own = append(own, f)
			if got := documented[name]; got != f.GetType().String() {
				t.Errorf("%s: type %s, in the README %q", name, f.GetType(), got)
			}
		}
	}
	problems, err := promlint.NewWithMetricFamilies(own).Lint()
	if err != nil || len(own) == 0 {
		t.Fatalf("%d metrics, %v", len(own), err)
	}
	for _, p := range problems {
		if exceptions[p.Metric] != p.Text {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		delete(exceptions, p.Metric)
	}
	if len(exceptions) > 0 {
		t.Errorf("no longer a problem, remove it from the list: %v", exceptions)
	}
}
