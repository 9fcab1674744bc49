package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/engine"
)

// connections are the connections of Services, and the state of the signals that plugins get.
type connections struct {
	mu       sync.Mutex
	services map[model.Name]tally.Connections
	policies []tally.PolicyConnections
	signals  map[engine.EventKind]signalState
}

// signalState is the last reading of a signal that succeeded.
type signalState struct {
	at        time.Time
	cpu       time.Duration
	endpoints int
	omitted   int
}

// signalLabels are the values of the label signal, and the operations of failures_total.
var signalLabels = map[engine.EventKind]string{engine.OutcomesRead: "outcomes", engine.ConnectionsCounted: "connections"}

func newConnections() connections {
	return connections{services: map[model.Name]tally.Connections{}, signals: map[engine.EventKind]signalState{}}
}

// update replaces the totals of Services, and those of policies unless they are nil.
func (c *connections) update(changed []tally.ServiceConnections, policies []tally.PolicyConnections) {
	if len(changed) == 0 && policies == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if policies != nil {
		c.policies = policies
	}
	for i := range changed {
		if s := &changed[i]; s.Gone {
			delete(c.services, s.Service)
		} else {
			c.services[s.Service] = s.Connections
		}
	}
}

// signal records a reading. One without a time ends the signal.
func (c *connections) signal(n engine.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case n.At.IsZero():
		delete(c.signals, n.Kind)
	case n.Err == nil:
		c.signals[n.Kind] = signalState{n.At, n.Duration, n.Count, n.Omitted}
	}
}

var (
	descServiceConnections = desc("service_connections_total", "Number of connections from this node to the endpoints of a Service by outcome: answered, "+
		"refused, unanswered (for more than a second; one that is answered later counts as both).", "namespace", "service", "outcome")
	descPolicyConnections = desc("policy_connections_total", "Number of connections from this node to the endpoints of Services by the policy that decided about them when "+
		"their outcome was read (empty: the default rules) and its revision, by outcome: answered, refused, unanswered.", "policy", "revision", "outcome")
	descSignalSuccess = desc("signal_last_success_timestamp_seconds", "Unix timestamp of the last reading of a signal that plugins need: "+
		"outcomes of connections, or open connections.", "signal")
	descSignalCPU       = desc("signal_read_cpu_seconds", "CPU time of the last reading of outcomes, and of the last count of open connections.", "signal")
	descUncounted       = desc("uncounted_endpoints", "Number of endpoints beyond the limit of the data plane, whose outcomes are needed and not counted.")
	descSignalEndpoints = desc("signal_endpoints", "Number of endpoints of the last reading of a signal.", "signal")
)

func (c *connections) collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range c.services {
		collectOutcomes(out, descServiceConnections, n, name.Namespace, name.Name)
	}
	for i := range c.policies {
		p := &c.policies[i]
		collectOutcomes(out, descPolicyConnections, p.Connections, p.Policy, p.Revision)
	}
	for kind, s := range c.signals {
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, signalLabels[kind])
		}
		gauge(descSignalSuccess, seconds(s.at))
		gauge(descSignalCPU, s.cpu.Seconds())
		gauge(descSignalEndpoints, float64(s.endpoints))
		if kind == engine.OutcomesRead {
			out <- prometheus.MustNewConstMetric(descUncounted, prometheus.GaugeValue, float64(s.omitted))
		}
	}
}

// collectOutcomes reports connections by outcome.
func collectOutcomes(out chan<- prometheus.Metric, d *prometheus.Desc, n tally.Connections, labels ...string) {
	counter := func(v uint64, outcome string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append(labels, outcome)...)
	}
	counter(n.Answered, "answered")
	counter(n.Refused, "refused")
	counter(n.Unanswered, "unanswered")
}
