package soak

import (
	"io"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/util/stats"
)

// samples returns n samples of a process that is healthy, changed by edit.
func samples(n int, edit func(i int, s *sample)) (list []sample) {
	for i := range n {
		s := sample{hostile: i >= n/10, rss: 80, descriptors: 20, goroutines: 30, update: stats.Summary{P99: 10}, updates: []float64{5, 10}, connections: 100, livez: 200}
		edit(i, &s)
		list = append(list, s)
	}
	return list
}

func TestReportFindsWhatGrows(t *testing.T) {
	for _, c := range []struct {
		name, want string
		edit       func(i int, s *sample)
	}{
		{"flat", "", func(int, *sample) {}},
		{"one outlier", "", func(i int, s *sample) {
			if i == 55 {
				s.rss, s.goroutines, s.update.P99 = 500, 1000, 900
			}
		}},
		{"memory", "resident memory, MiB grew", func(i int, s *sample) { s.rss += float64(i) }},
		{"descriptors", "file descriptors grew", func(i int, s *sample) { s.descriptors += i / 5 }},
		{"goroutines", "goroutines grew", func(i int, s *sample) { s.goroutines += i }},
		{"updates", "update p99, ms grew", func(i int, s *sample) { s.update.P99 += float64(i) }},
		{"slow updates", "update p99 is 40.0 ms with hostile plugins and tenants and 10.0 ms without", func(_ int, s *sample) {
			if s.hostile {
				s.updates = []float64{5, 40}
			}
		}},
		{"a failed connection", "1 of 6000 connections failed", func(i int, s *sample) { s.failed = int64(i / 59) }},
		{"unhealthy once", "/livez was not 200 in 1 samples", func(i int, s *sample) {
			if i == 30 {
				s.livez = 503
			}
		}},
	} {
		err := report(io.Discard, samples(60, c.edit))
		if got := errorText(err); (c.want == "") != (err == nil) || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if err := report(io.Discard, samples(5, func(int, *sample) {})); err == nil {
		t.Error("five samples: no error")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestMetricSumsSeries(t *testing.T) {
	text := "# TYPE a counter\na{x=\"1\"} 2\na{x=\"2 \"} 3\na_total 7\nab 9\n"
	if got := metric(text, "a"); got != 5 {
		t.Errorf("a: %v, want 5", got)
	}
	if got := metric(text, "a_total"); got != 7 {
		t.Errorf("a_total: %v, want 7", got)
	}
}
