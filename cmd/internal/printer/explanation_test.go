package printer

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

func TestKernelWeightsArePrintedPerFrontendWhereTheyDiffer(t *testing.T) {
	kernel := []api.KernelShare{{Frontend: "10.96.0.1:80/TCP", Weight: 3, Total: 3}, {Frontend: "*4:30080/TCP", Weight: 3, Total: 3}}
	if got, want := kernelText(&api.Endpoint{Kernel: kernel}), "3 of 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	kernel[1].Connections = &api.Connections{Active: 2, Inactive: 7}
	if got, want := kernelText(&api.Endpoint{Kernel: kernel}), "10.96.0.1:80/TCP: 3 of 3, *4:30080/TCP: 3 of 3 (2 active, 7 inactive)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPoolThatWaitsForItsPluginSaysSo(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var out strings.Builder
	printPool(&out, &api.Pool{Port: "http", Pending: &api.Pending{Plugin: "locality", Since: at, ThrottledSince: &at}}, nil)
	want := "waiting for plugin locality since 2026-01-01T12:00:00Z; throttled since 2026-01-01T12:00:00Z: it has used up its share of CPU time\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s\nwant %s", out.String(), want)
	}
}

// Whoever writes an annotation can write anything.
func TestInputsArePrintedEscapedWithTheirAge(t *testing.T) {
	hostile := "a\x1b[31m\nb\tc"
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	n, count := uint32(7), uint32(3)
	in := api.Input{
		Plugin: "p", At: at, Changed: true, NodeIndex: &count, NodeCount: &n, ConnectionsAge: "1.5s", OutcomesWindow: "10s", Omitted: 4,
		Service: []api.InputValue{{Key: "service-label:tier", Value: &hostile}},
		Endpoints: []api.InputEndpoint{{
			Address: "10.0.0.1:80", Conditions: []string{"ready"}, Capacity: 0.5, Share: 1.0 / 3, ReadySince: &at, Pod: "web-0", Connections: &n,
			Outcomes: &api.InputOutcomes{InputCounts: api.InputCounts{Attempts: 5, Answered: 1, Refused: 2, Unanswered: 2}, Total: api.InputCounts{Attempts: 50}},
			Values:   []api.InputValue{{Key: "label:track", Value: &hostile}, {Key: "annotation:b"}},
		}, {Address: "10.0.0.2:80", Values: make([]api.InputValue, 2)}},
	}
	var out strings.Builder
	x := &api.Explanation{Service: "a/b", Plugins: []string{"p"}, Pools: []api.Pool{{Endpoints: []api.Endpoint{{}}, Inputs: []api.Input{in}}}}
	if err := Explanation(&out, x, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`p saw at 12:00:00 UTC, and something has changed since:`, `index of this node: 3 of 7`, `service-label:tier: "a\\u001b\[31m\\nb\\tc"`,
		`established connections: counted 1.5s before`, `outcomes: of new connections in the last 10s \(in parentheses: since the first count\)`, `and 4 more endpoints`,
		`ENDPOINT +CAPACITY +SHARE +SINCE +CONNECTIONS +ANSWERED +REFUSED +UNANSWERED +ATTEMPTS +label:track +annotation:b +POD +CONDITIONS`,
		`10.0.0.1:80 +0.5 +0.333 +ready 12:00:00 +7 +1 \(0\) +2 \(0\) +2 \(0\) +5 \(50\) +"a\\u001b\[31m\\nb\\tc" +- +web-0 +ready`,
		`10.0.0.2:80 +0 +0 +- +- +- +- +- +- +- +- +- +-`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.ContainsAny(out.String(), "\x1b\t") {
		t.Errorf("not escaped:\n%q", out.String())
	}

	// What a plugin has asked for and nobody knows is shown as such.
	out.Reset()
	printInputs(&out, &api.Input{
		ConnectionsAge: api.Unknown, OutcomesWindow: api.Unknown, Zones: []api.InputZone{{Name: "a", Nodes: new(uint32), MilliCPU: new(uint64)}},
	})
	for _, want := range []string{"index of this node: unknown\n", "established connections: not counted\n", "outcomes: not counted\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestReasonOfManyEndpointsIsPrintedOnce(t *testing.T) {
	p := &api.Pool{Port: "http"}
	for i := range 4 {
		p.Endpoints = append(p.Endpoints, api.Endpoint{Address: fmt.Sprint("10.0.1.", i, ":80"), Why: "ready", Steps: []api.Step{{Plugin: "zones"}}})
	}
	for i := range 9 {
		e := api.Endpoint{Address: fmt.Sprint("10.0.0.", i, ":80"), Why: "ready", Steps: []api.Step{{Plugin: "zones", Reason: "zone a keeps 80 %"}}}
		if i%3 == 2 {
			e.Steps[0].Reason = "zone b gets the rest"
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	var out strings.Builder
	printPool(&out, p, []string{"zones"})
	for _, want := range []string{
		`(?m)^  10.0.1.3:80 .* ready$`, `(?m)^  10.0.0.1:80 .* \(1\)$`, `(?m)^  10.0.0.2:80 .* ready; zones: zone b gets the rest$`, `(?m)^  \(1\) 6 endpoints: ready; zones: zone a keeps 80 %$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "zone a keeps"); n != 1 {
		t.Errorf("the reason is there %d times", n)
	}
}

// TestAnErrorIsPrintedOnceAndALoadIsNoFailure: the error of a Service is that of its plugin, which another one waits for.
func TestAnErrorIsPrintedOnceAndALoadIsNoFailure(t *testing.T) {
	x := &api.Explanation{Service: "shop/web", Plugins: []string{"p", "q", "r"}, Error: "policy x: shop/web:http/TCP IPv4 cluster pool: plugin p: image i: connection refused", Node: &api.Node{Plugins: []api.Plugin{
		{Name: "p", Error: "plugin p: image i: connection refused"},
		{Name: "q", Error: "plugin q: image j: not pulled yet", Loading: true},
		{Name: "r", Digest: "sha256:00", Image: "registry.example.com/r@sha256:11"},
	}}}
	failing, degraded := x.Problems()
	if got, want := fmt.Sprintf("%q %q", failing, degraded), `["loading failed; no revision is in force: plugin p: image i: connection refused"] `+
		`["loading; no revision is in force: plugin q: image j: not pulled yet"]`; got != want {
		t.Errorf("problems %s, want %s", got, want)
	}
	var out strings.Builder
	if err := Explanation(&out, x, ""); err != nil {
		t.Fatal(err)
	}
	for text, times := range map[string]int{"connection refused": 1, "  plugin     r sha256:00, of the image registry.example.com/r@sha256:11\n": 1, "\n  loading    ": 1, "  error ": 0} {
		if n := strings.Count(out.String(), text); n != times {
			t.Errorf("%q is there %d times, want %d, in\n%s", text, n, times, out.String())
		}
	}
}
