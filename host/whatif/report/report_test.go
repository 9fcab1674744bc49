package report

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/whatif/simulation"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// result returns a result of two runs over three zones, with samples at 0, 10, 20 … seconds.
func result(samples, services int) *simulation.Result {
	r := &simulation.Result{
		Seed: 7, Nodes: 12, Services: services, Endpoints: 6 * services, Zones: []string{"", "zone-a", "zone-b"}, Demand: "nodes", Capacity: "equal",
		Timeline: "zone-lost.scenario", Notes: []string{"Endpoints have equal capacity."},
	}
	if samples > 1 {
		r.StepSeconds, r.DurationSeconds = 10, float64(10*(samples-1))
		r.Events = []simulation.Event{{Seconds: 20, Text: "zone zone-b is lost", Line: 3}, {Seconds: 60, Text: "Node b1 is not ready"}, {Seconds: 120, Text: "zone zone-b is back", Line: 4}}
	}
	for n, name := range verdict.Runs {
		run := simulation.Run{
			Run: verdict.Run{Name: name, Config: []string{"new.yaml", "old.yaml"}[n]}, Plugins: []simulation.PluginInfo{{Name: "locality", Digest: "sha256:" + strings.Repeat("ab", 32), Revision: "12ab"}},
			Policies: []simulation.PolicyInfo{{Name: "spill", Revision: "98fe", Services: services}, {}},
			Summary:  simulation.Summary{MaxOverload: 1.4 + float64(n), CrossZoneShare: 0.3 + 0.3*float64(n), FailedShare: 0.001 * float64(1-n), Divergence: 0.4},
		}
		for i := range samples {
			wave := math.Sin(float64(i) / 5)
			run.Series = append(run.Series, simulation.Sample{
				Seconds: float64(10 * i), Demand: 300, ZoneDemand: []float64{0, 200, 100}, ZoneLoad: []float64{0, 150 + 50*wave, 150 - 50*wave},
				CrossZoneShare: 0.3 + 0.1*wave, MaxOverload: 1.5 + 0.5*wave, FailedShare: 0.01 * float64(n),
			})
		}
		for i := range services {
			s := simulation.ServiceResult{
				ServicePort: verdict.ServicePort{Service: fmt.Sprintf("shop/web-%d", i), Port: "http", Protocol: "TCP", Family: "IPv4"}, Policy: "spill", MaxOverload: 1.4 + float64(n) - 0.01*float64(i), MeanOverload: 1.1,
				ZoneMatrix: [][]float64{{0, 0, 0}, {0, 8, 2}, {0, 3, 7.5}}, EndpointsOmitted: i,
			}
			for e := range 6 {
				ep := simulation.EndpointResult{Address: fmt.Sprintf("10.0.%d.%d:8080", i, e), Pod: fmt.Sprintf("web-%d-%d", i, e), Zone: r.Zones[1+e%2]}
				for j := range samples {
					ep.Load = append(ep.Load, 10+float64(e)+float64(j%4))
					ep.Overload = append(ep.Overload, 1+float64(e)/10)
				}
				s.Endpoints = append(s.Endpoints, ep)
			}
			run.Services = append(run.Services, s)
		}
		r.Runs = append(r.Runs, run)
	}
	r.Comparison = &simulation.Comparison{Divergence: 0.4, Metrics: verdict.Compare(r.Runs[0].Summary.Metrics(), r.Runs[1].Summary.Metrics())}
	for range samples {
		r.Comparison.Series = append(r.Comparison.Series, 0.4)
	}
	for i := range services {
		r.Comparison.Services = append(r.Comparison.Services, simulation.ServiceComparison{ServicePort: verdict.ServicePort{Service: fmt.Sprintf("shop/web-%d", i), Port: "http", Protocol: "TCP", Family: "IPv4"}, Divergence: 1 / float64(i+1)})
	}
	return r
}

var origin = Origin{Version: "v1", Command: "sluice simulate --seed 7"}

func html(t testing.TB, r *simulation.Result) string {
	t.Helper()
	var out bytes.Buffer
	if err := Simulation(&out, r, origin); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPageNeedsNothingElse(t *testing.T) {
	for _, samples := range []int{1, 30} {
		page := html(t, result(samples, 12))
		page = strings.ReplaceAll(page, "http://www.w3.org/", "")
		if found := regexp.MustCompile(`https?:|//[a-z]|url\(|@import|<link|<img|<iframe| src=| href=`).FindAllString(page, -1); found != nil {
			t.Errorf("%d samples: %q", samples, found)
		}
		if again := html(t, result(samples, 12)); strings.ReplaceAll(again, "http://www.w3.org/", "") != page {
			t.Errorf("%d samples: the same result, another page", samples)
		}
	}
}

func TestVerdictComesFirst(t *testing.T) {
	page := html(t, result(30, 3))
	at, table := strings.Index(page, "new.yaml sends 40.0 % of the new connections to other endpoints than old.yaml."), strings.Index(page, "<table")
	if at < 0 || at > table {
		t.Errorf("verdict at %d, first table at %d", at, table)
	}
	for _, want := range []string{"Better: largest overload 1.40 instead of 2.40; connections across zones 30.0 % instead of 60.0 %.", "Worse: failed connections 0.1 % instead of 0.0 %."} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	one := result(1, 3)
	one.Runs, one.Comparison = one.Runs[1:], nil
	if got := strings.Join(Verdict(one), " "); !strings.HasPrefix(got, "The most loaded endpoint gets 2.40 times its fair share of new connections: one of shop/web-0, port http, at 0 s. 60.0 % of the connections cross zones") {
		t.Error(got)
	}
	if got := Verdict(&simulation.Result{}); len(got) != 1 {
		t.Error(got)
	}
	if !strings.Contains(html(t, &simulation.Result{}), "Nothing was computed.") {
		t.Error("an empty result has no page")
	}
}

func TestServicesThatAreAskedAboutHaveTheFirstCharts(t *testing.T) {
	for _, samples := range []int{1, 30} {
		r := result(samples, 12)
		if page := html(t, r); strings.Contains(page, "Load of the endpoints of shop/web-11:http") {
			t.Errorf("%d samples: a Service that nobody asks about has a chart", samples)
		}
		r.Asked = []string{"shop/web-11"}
		page := html(t, r)
		first := strings.Index(page, "<figure")
		for _, config := range []string{"new.yaml", "old.yaml"} {
			want := "Load of the endpoints of shop/web-11:http, " + config
			if got := strings.Index(page, "<figcaption>"+want); got < first || !strings.Contains(page[first:], want) {
				t.Errorf("%d samples: no %q", samples, want)
			}
		}
		if load := strings.Index(page, "Load of each zone"); load < strings.Index(page, "<figcaption>Load of the endpoints of shop/web-11:http") {
			t.Errorf("%d samples: the chart of zones is before that of the Service", samples)
		}
	}
}

// Names come from objects of tenants and from files.
func TestTextIsNeverMarkup(t *testing.T) {
	const evil = "</title><script>alert(1)</script>\x1b[31m\"'"
	r := result(3, 2)
	r.Zones = []string{"", evil, "b"}
	r.Demand, r.Capacity, r.Timeline = evil, evil, evil
	r.Notes, r.Events[0].Text = []string{evil}, evil
	for i := range r.Runs {
		run := &r.Runs[i]
		run.Config, run.Errors = evil, []string{evil}
		run.Plugins[0], run.Policies[0] = simulation.PluginInfo{Name: evil, Digest: evil}, simulation.PolicyInfo{Name: evil, Revision: evil}
		for j := range run.Services {
			s := &run.Services[j]
			s.Service, s.Port, s.Policy, s.Error = evil, evil, evil, evil
			for e := range s.Endpoints {
				s.Endpoints[e].Pod, s.Endpoints[e].Zone = evil, evil
			}
		}
	}
	for i := range r.Comparison.Services {
		r.Comparison.Services[i].Service = evil
	}
	var out bytes.Buffer
	if err := Simulation(&out, r, Origin{evil, evil}); err != nil {
		t.Fatal(err)
	}
	if page := out.String(); strings.Contains(page, "<script>alert") || strings.Contains(page, "\x1b") || strings.Count(page, "<script") != 1 {
		t.Error("text of an object is markup, or not escaped")
	}
}

// A chart survives values that no simulation should give.
func TestChartsOfStrangeValues(t *testing.T) {
	for name, test := range map[string]struct {
		chart *chart
		want  string
	}{
		"nothing":      {&chart{At: values{}}, `"lines":null,"at":[]`},
		"no bars":      {&chart{Lines: []line{{"x", nil}}}, `"lines":[{"name":"x","values":null}],"at":null,"bars":null`},
		"not a number": {&chart{At: values{0, 1}, Lines: []line{{"x", values{math.NaN(), math.Inf(1)}}}}, `"values":[null,null]`},
		"too many":     {&chart{At: values{0}, Lines: make([]line, 100)}, `"omitted":92`},
		"digits":       {&chart{At: values{0}, Lines: []line{{"x", values{1. / 3}}}}, `[0.333333]`},
	} {
		if got, err := test.chart.JSON(); err != nil || !strings.Contains(got, test.want) {
			t.Errorf("%s: %v, %s", name, err, got)
		}
	}
}
