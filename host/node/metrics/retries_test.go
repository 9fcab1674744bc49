package metrics_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestRetriesAreAbsentWhileTheKernelCannotBeRead(t *testing.T) {
	known := true
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables"}, Started: time.Now(), Retries: func() (metrics.Retries, bool) {
		return metrics.Retries{Retried: 7, NoRoom: 2}, known
	}})
	read := func() (n int, sum float64) {
		families, err := m.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), "sluice_refused_connections_") {
				n++
				sum = 10*sum + f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return n, sum
	}
	if n, sum := read(); n != 2 || sum != 27 { // not retried, retried
		t.Errorf("%d metrics, %v", n, sum)
	}
	checkNames(t, m, map[string]string{"kubeproxy_preserved_udp_conntrack_flows_total": `non-counter metrics should not have "_total" suffix`})
	known = false
	if n, _ := read(); n != 0 {
		t.Errorf("%d metrics of what is not known", n)
	}
}
