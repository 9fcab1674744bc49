package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

func newConnectionMetrics() *metrics.Metrics {
	return metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Started: time.Unix(0, 0)})
}

// planned reports the totals of Services.
func planned(m *metrics.Metrics, all ...tally.ServiceConnections) {
	r := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil).Plan(time.Unix(1, 0))
	r.Connections = all
	m.OnPlan(&engine.PlannedStep{At: time.Unix(2, 0), Result: &r})
}

// series returns the samples of a metric by labels.
func series(t testing.TB, m *metrics.Metrics, metric string) map[string]float64 {
	out := map[string]float64{}
	for k, v := range values(t, m) {
		if labels, ok := strings.CutPrefix(k, metric+"{"); ok {
			out[labels] = v
		}
	}
	return out
}

func TestConnectionsOfServicesAreCountedByOutcome(t *testing.T) {
	m := newConnectionMetrics()
	const metric = "sluice_service_connections_total"
	web, api := name("web"), name("api")
	planned(m, tally.ServiceConnections{Service: web}, tally.ServiceConnections{Service: api})
	planned(m, tally.ServiceConnections{Service: web, Connections: tally.Connections{Answered: 5, Refused: 2, Unanswered: 1}})
	planned(m)
	want := map[string]float64{}
	for labels, v := range map[string]float64{
		"web,outcome=answered": 5, "web,outcome=refused": 2, "web,outcome=unanswered": 1,
		"api,outcome=answered": 0, "api,outcome=refused": 0, "api,outcome=unanswered": 0,
	} {
		service, outcome, _ := strings.Cut(labels, ",")
		want["namespace=shop,"+outcome+",service="+service+"}"] = v
	}
	if got := series(t, m, metric); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	planned(m, tally.ServiceConnections{Service: web, Gone: true})
	if got := series(t, m, metric); len(got) != 3 {
		t.Errorf("after a Service was deleted: %v", got)
	}
}

func TestSignalMetricsEndWithTheNeed(t *testing.T) {
	m := newConnectionMetrics()
	const at = "sluice_signal_last_success_timestamp_seconds"
	m.OnEvent(engine.Event{Kind: engine.OutcomesRead, At: time.Unix(100, 0), Duration: 3 * time.Millisecond, Count: 7})
	m.OnEvent(engine.Event{Kind: engine.OutcomesRead, At: time.Unix(200, 0), Err: errors.New("no memory")})
	m.OnEvent(engine.Event{Kind: engine.ConnectionsCounted, At: time.Unix(150, 0), Count: 9})
	if got := series(t, m, at); got["signal=outcomes}"] != 100 || got["signal=connections}"] != 150 {
		t.Errorf("last success: %v", got)
	}
	if got := series(t, m, "sluice_signal_endpoints"); got["signal=outcomes}"] != 7 || got["signal=connections}"] != 9 {
		t.Errorf("endpoints: %v", got)
	}
	if got := series(t, m, "sluice_signal_read_cpu_seconds"); got["signal=outcomes}"] != 0.003 {
		t.Errorf("CPU time: %v", got)
	}
	if got := series(t, m, "sluice_failures_total"); got["operation=outcomes}"] != 1 || got["operation=connections}"] != 0 {
		t.Errorf("failures: %v", got)
	}
	m.OnEvent(engine.Event{Kind: engine.OutcomesRead})
	if got := series(t, m, at); len(got) != 1 {
		t.Errorf("after the need has ended: %v", got)
	}
}

// BenchmarkServiceConnections measures a reading that changes all of 10,000 Services, and a scrape of their connections.
func BenchmarkServiceConnections(b *testing.B) {
	const services = 10_000
	var all []tally.ServiceConnections
	for i := range services {
		all = append(all, tally.ServiceConnections{Service: name(fmt.Sprint("s", i)), Connections: tally.Connections{Answered: uint64(i)}})
	}
	r := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil).Plan(time.Unix(1, 0))
	r.Connections = all
	step := &engine.PlannedStep{At: time.Unix(2, 0), Result: &r}
	b.Run("reading", func(b *testing.B) {
		m := newConnectionMetrics()
		b.ReportAllocs()
		for b.Loop() {
			m.OnPlan(step)
		}
	})
	b.Run("scrape", func(b *testing.B) {
		m := newConnectionMetrics()
		m.OnPlan(step)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := m.Registry().Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestConnectionsOfPoliciesAreCountedByOutcome(t *testing.T) {
	m := newConnectionMetrics()
	const metric = "sluice_policy_connections_total"
	report := func(all ...tally.PolicyConnections) {
		r := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil).Plan(time.Unix(1, 0))
		r.PolicyConnections = all
		m.OnPlan(&engine.PlannedStep{At: time.Unix(2, 0), Result: &r})
	}
	report(tally.PolicyConnections{Connections: tally.Connections{Answered: 9}},
		tally.PolicyConnections{Policy: "zones", Revision: "0123456789ab", Connections: tally.Connections{Answered: 5, Refused: 2, Unanswered: 1}})
	report() // nothing has changed
	want := map[string]float64{
		"outcome=answered,policy=,revision=}": 9, "outcome=refused,policy=,revision=}": 0, "outcome=unanswered,policy=,revision=}": 0,
		"outcome=answered,policy=zones,revision=0123456789ab}": 5, "outcome=refused,policy=zones,revision=0123456789ab}": 2,
		"outcome=unanswered,policy=zones,revision=0123456789ab}": 1,
	}
	if got := series(t, m, metric); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	r := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil).Plan(time.Unix(1, 0))
	r.PolicyConnections = []tally.PolicyConnections{}
	m.OnPlan(&engine.PlannedStep{At: time.Unix(3, 0), Result: &r})
	if got := series(t, m, metric); len(got) != 0 {
		t.Errorf("after they are forgotten: %v", got)
	}
}
