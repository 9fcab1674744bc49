package metrics_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestMetricsOfReadings(t *testing.T) {
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Started: time.Now()})
	at := time.Unix(1_700_000_000, 0)
	reading := map[string]float64{"sluice_signal_endpoints": 16384, "sluice_uncounted_endpoints": 100}
	for _, c := range []struct {
		name  string
		event engine.Event
		want  map[string]float64
	}{
		{"a reading", engine.Event{Kind: engine.OutcomesRead, At: at, Count: 16384, Omitted: 100}, reading},
		{"one that failed", engine.Event{Kind: engine.OutcomesRead, At: at, Err: errors.New("busy")}, reading},
		{"the next one", engine.Event{Kind: engine.OutcomesRead, At: at, Count: 7}, map[string]float64{"sluice_signal_endpoints": 7, "sluice_uncounted_endpoints": 0}},
		{"none any more", engine.Event{Kind: engine.OutcomesRead}, map[string]float64{}},
	} {
		m.OnEvent(c.event)
		families, err := m.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			if _, ok := reading[f.GetName()]; ok {
				got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
