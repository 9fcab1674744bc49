package metrics_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestMetricsServerPages(t *testing.T) {
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Version: "v0.1.0", Started: time.Now()})
	pages := metrics.Pages{Mode: func() string { return "nftables" }, Log: slog.New(slog.DiscardHandler), Config: func() any { return map[string]string{"mode": "nftables"} }}
	get := func(h http.Handler, path string) (int, string, http.Header) {
		t.Helper()
		server := httptest.NewServer(h)
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b), resp.Header
	}
	for path, want := range map[string]struct{ kind, body string }{
		"/proxyMode": {"text/plain", "nftables"},
		"/healthz":   {"text/plain", "ok"},
		"/configz":   {"application/json", "{\n  \"mode\": \"nftables\"\n}\n"},
	} {
		code, body, header := get(m.Handler(pages), path)
		if code != 200 || body != want.body || !strings.HasPrefix(header.Get("Content-Type"), want.kind) {
			t.Errorf("%s: %d %q %s", path, code, body, header.Get("Content-Type"))
		}
	}
	code, body, _ := get(m.Handler(pages), "/metrics")
	for _, line := range []string{"\nsluice_build_info{", "\n# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram\n", "\ngo_goroutines ", "\nprocess_resident_memory_bytes "} {
		if code != 200 || !strings.Contains(body, line) {
			t.Errorf("/metrics: %d, without %q", code, line)
		}
	}
	if strings.Contains(body, "sluice_services") {
		t.Error("plan metrics before the first plan")
	}
	if code, _, _ := get(m.Handler(pages), "/debug/pprof/"); code != 404 {
		t.Errorf("/debug/pprof/ although disabled: %d", code)
	}
	pages.Profiling = true
	if code, body, _ := get(m.Handler(pages), "/debug/pprof/heap?debug=1"); code != 200 || !strings.Contains(body, "heap profile") {
		t.Errorf("profiles: %d", code)
	}
}

func TestIPVSModeExportsNoNFTablesMetrics(t *testing.T) {
	for n := range values(t, metrics.New(metrics.Options{Mode: metrics.Mode{Name: "ipvs"}})) {
		if strings.Contains(n, "nftables") {
			t.Errorf("%s", n)
		}
	}
}
