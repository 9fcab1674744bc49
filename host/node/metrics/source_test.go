package metrics_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func TestSourceStalenessAndRequestMetrics(t *testing.T) {
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Started: time.Now()})
	series := func() (out []string) {
		families, err := m.Registry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range families {
			if name := f.GetName(); name != "sluice_source_stale_seconds" && !strings.HasPrefix(name, "rest_client_") && !strings.HasPrefix(name, "sluice_pod") && name != "sluice_source_labels" {
				continue
			}
			problems, err := promlint.NewWithMetricFamilies(families[i : i+1]).Lint()
			if err != nil || len(problems) > 0 {
				t.Errorf("%v, %v", problems, err)
			}
			for _, s := range f.GetMetric() {
				var labels []string
				for _, l := range s.GetLabel() {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
				out = append(out, fmt.Sprintf("%s %s %s %v", f.GetType(), f.GetName(), strings.Join(labels, ","), s.GetGauge().GetValue()+s.GetCounter().GetValue()+s.GetHistogram().GetSampleSum()))
			}
		}
		return out
	}
	if got := series(); len(got) > 0 {
		t.Errorf("without an API server: %q", got)
	}
	stale := time.Duration(0)
	m.SetSource(metrics.Source{
		Resources: func() []metrics.Resource {
			return []metrics.Resource{{Name: "services", Staleness: stale}, {Name: "endpointslices"}}
		},
		Pods:   func() metrics.Pods { return metrics.Pods{Watches: 2, Pods: 30, Pending: 1, Read: 4, Unavailable: 5} },
		Labels: func() []metrics.Labels { return []metrics.Labels{{Of: "Nodes", Read: 3, Pending: 1, Refused: 2}} },
		Requests: func() []metrics.RequestCount {
			return []metrics.RequestCount{{Code: "200", Method: "GET", Host: "192.0.2.1:6443", Count: 7}, {Code: "<error>", Method: "GET", Host: "192.0.2.1:6443", Count: 3}}
		},
	})
	m.ObserveRequest("GET", "192.0.2.1:6443", 1500*time.Millisecond)
	for _, stale = range []time.Duration{0, 90 * time.Second} {
		want := []string{
			"HISTOGRAM rest_client_request_duration_seconds host=192.0.2.1:6443,verb=GET 1.5",
			"COUNTER rest_client_requests_total code=200,host=192.0.2.1:6443,method=GET 7",
			"COUNTER rest_client_requests_total code=<error>,host=192.0.2.1:6443,method=GET 3",
			"GAUGE sluice_pod_services state=pending 1",
			"GAUGE sluice_pod_services state=read 4",
			"GAUGE sluice_pod_services state=unavailable 5",
			"GAUGE sluice_pod_watches  2",
			"GAUGE sluice_pods  30",
			"GAUGE sluice_source_labels of=Nodes,state=pending 1",
			"GAUGE sluice_source_labels of=Nodes,state=read 3",
			"GAUGE sluice_source_labels of=Nodes,state=refused 2",
			"GAUGE sluice_source_stale_seconds resource=endpointslices 0",
			fmt.Sprint("GAUGE sluice_source_stale_seconds resource=services ", stale.Seconds()),
		}
		if got := series(); !slices.Equal(got, want) {
			t.Errorf("got %q\nwant %q", got, want)
		}
	}
}
