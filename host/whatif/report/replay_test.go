package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/replay"
	"github.com/sluice-proxy/sluice/host/whatif/verdict"
)

// replayed returns the result of a replay over ten minutes in which Service ports differ.
func replayed(services int) *replay.Result {
	from := time.Date(2026, 11, 2, 3, 0, 0, 0, time.UTC)
	r := &replay.Result{
		Header: recording.Header{Node: "n1", Mode: "nftables", Version: "v1"}, From: from, To: from.Add(10 * time.Minute), Changes: 120, Readings: 60, Services: 30, Endpoints: 90,
		Truncated: true, Runs: []replay.Run{{Run: verdict.Run{Name: verdict.Candidate, Config: "new.yaml"}, Summary: replay.Summary{Updates: 9}}, {Run: verdict.Run{Name: verdict.Baseline, Errors: []string{"policy p: fails"}}}},
		Comparison: &replay.Comparison{MaxDivergence: 0.5, MeanDivergence: 0.01, Differing: services, Services: []replay.Service{}, Series: replay.Series{StepSeconds: 4}},
	}
	for i := range 150 {
		r.Comparison.Series.Divergence = append(r.Comparison.Series.Divergence, float64(i%30)/100)
		r.Comparison.Series.Differing = append(r.Comparison.Series.Differing, i%services)
	}
	for i := range services {
		r.Comparison.Services = append(r.Comparison.Services, replay.Service{
			ServicePort: verdict.ServicePort{Service: fmt.Sprintf("shop/web-%d", i), Port: "http", Protocol: "TCP", Family: "IPv4"}, MaxDivergence: 1 / float64(i+2), MeanDivergence: 0.1 / float64(i+1), Seconds: 60, Omitted: i,
			Periods: []replay.Period{{From: from.Add(time.Minute), To: from.Add(2 * time.Minute), Divergence: 1 / float64(i+2), At: from.Add(time.Minute), Frontend: "10.96.0.1:80/TCP",
				Endpoints: []replay.Endpoint{{Address: "10.0.0.1:8080", Pod: "web-a", Zone: "zone-a", Pair: verdict.Pair{Candidate: 1, Baseline: 0.5}}, {Address: "10.0.0.2:8080", Pair: verdict.Pair{Baseline: 0.5}}}}},
		})
	}
	return r
}

func replayPage(t testing.TB, r *replay.Result, o Origin) string {
	t.Helper()
	var out bytes.Buffer
	if err := Replay(&out, r, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestPageOfAReplay(t *testing.T) {
	page := replayPage(t, replayed(12), origin)
	for _, want := range []string{
		"<h1>new.yaml against the default rules</h1>", "new.yaml differs from the default rules for 12 Service ports: up to 50.0 % of the new connections", "Failure with the default rules: policy p: fails",
		"Node n1, mode nftables, sluice v1: 2026-11-02 03:00:00 to 2026-11-02 03:10:00 UTC. 120 changes, 60 readings of outcomes; at the end 30 Services and 90 endpoints.",
		"mean of all Service ports", "Service ports that differ", "Connections to shop/web-0:http (IPv4)", "10.0.0.1:8080", "<td>web-a</td>", "11 later times are not shown",
		"the recording has not been closed", "<pre>sluice simulate --seed 7</pre>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q", want)
		}
	}
	if again := replayPage(t, replayed(12), origin); again != page {
		t.Error("the same result, another page")
	}
	page = strings.ReplaceAll(page, "http://www.w3.org/", "")
	if found := regexp.MustCompile(`https?:|//[a-z]|url\(|@import|<link|<img|<iframe| src=| href=|#0[0-8]0[0-2]00`).FindAllString(page, -1); found != nil {
		t.Errorf("%q", found)
	}
}

func TestPageOfAReplayWithOneRunOrNoDifference(t *testing.T) {
	r := replayed(3)
	r.Comparison, r.Runs = nil, r.Runs[:1]
	if page := replayPage(t, r, origin); !strings.Contains(page, "The plan would have been updated 9 times") || strings.Contains(page, "divergence") {
		t.Error(page)
	}
	r = replayed(3)
	r.Comparison = &replay.Comparison{Services: []replay.Service{}}
	if page := replayPage(t, r, origin); !strings.Contains(page, "No difference: new.yaml and the default rules") || strings.Contains(page, "Over time") {
		t.Error(page)
	}
}

func TestNamesInAReplayAreEscaped(t *testing.T) {
	const evil = "<script>alert(1)</script>\x1b[31m\"'"
	r := replayed(2)
	r.Header.Node, r.Runs[0].Config, r.Runs[0].Errors, r.Notes = evil, evil, []string{evil}, []string{evil}
	s := &r.Comparison.Services[0]
	s.Service, s.Port = evil, evil
	s.Periods[0].Frontend, s.Periods[0].Endpoints[0].Pod = evil, evil
	if page := replayPage(t, r, Origin{evil, evil}); strings.Contains(page, "<script>alert") || strings.Contains(page, "\x1b") {
		t.Error("a name gets into the page unescaped")
	}
}
