package metrics_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// TestHistogramsAreNativeBesideTheirBuckets: for a scrape in protobuf format; in text, nothing changes.
func TestHistogramsAreNativeBesideTheirBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.emit(service("a", 1, nil), endpoints("a", time.Now().Add(time.Millisecond), "n1"), synced)
		r.advance(3 * time.Second)
		r.metrics.ObserveRequest("GET", "h", time.Millisecond)
		histograms := 0
		for _, f := range scrape(t, r.metrics, "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited") {
			if f.GetType() != dto.MetricType_HISTOGRAM || strings.HasPrefix(f.GetName(), "go_") {
				continue
			}
			histograms++
			for _, m := range f.Metric {
				if h := m.Histogram; len(h.Bucket) == 0 || h.Schema == nil || h.GetSampleCount() > 0 && len(h.PositiveSpan) == 0 && h.GetZeroCount() == 0 {
					t.Errorf("%s %v: %d buckets, schema %v, spans %v", f.GetName(), m.Label, len(h.Bucket), h.Schema, h.PositiveSpan)
				}
			}
		}
		if histograms < 7 {
			t.Errorf("%d histograms", histograms)
		}
		for _, f := range scrape(t, r.metrics, "text/plain") {
			for _, m := range f.Metric {
				if h := m.Histogram; h != nil && (h.Schema != nil || len(h.Bucket) == 0) {
					t.Errorf("%s in text: %d buckets, schema %v", f.GetName(), len(h.Bucket), h.Schema)
				}
			}
		}
	})
}

func scrape(t *testing.T, m *metrics.Metrics, accept string) (out []*dto.MetricFamily) {
	t.Helper()
	req, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
	req.Header.Set("Accept", accept)
	m.Handler(metrics.Pages{Log: slog.New(slog.DiscardHandler)}).ServeHTTP(w, req)
	d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	for {
		f := &dto.MetricFamily{}
		if d.Decode(f) != nil {
			return out
		}
		out = append(out, f)
	}
}
