package metrics_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestAffinityMetrics(t *testing.T) {
	var usage *metrics.AffinityUsage
	m := metrics.New(metrics.Options{
		Mode: metrics.Mode{Name: "nftables", NFTables: true}, Started: time.Now(), Affinity: func() *metrics.AffinityUsage { return usage },
	})
	for _, c := range []struct {
		usage *metrics.AffinityUsage
		want  []string
	}{
		{nil, nil},
		{&metrics.AffinityUsage{IPv4: 7, IPv6: 9, Full: 3}, []string{"full_service_ports  3"}}, // a kernel that does not count
		{&metrics.AffinityUsage{Counted: true, IPv4: 7, IPv6: 9, Full: 3}, []string{"clients IPv4 7", "clients IPv6 9", "full_service_ports  3"}},
	} {
		usage = c.usage
		families, err := m.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			if name, ok := strings.CutPrefix(f.GetName(), "sluice_affinity_"); ok {
				for _, s := range f.GetMetric() {
					label := ""
					for _, l := range s.GetLabel() {
						label = l.GetValue()
					}
					got = append(got, fmt.Sprintf("%s %s %v", name, label, s.GetGauge().GetValue()))
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.usage, got, c.want)
		}
	}
}
