package config

import "time"

// Signals configures what plugins are told about connections.
type Signals struct {
	// Period is the time between two readings of the outcomes of connections, and the least between two counts of open ones.
	Period time.Duration
}

// Bounds and default of Signals.Period. An attempt counts as unanswered after a second (outcomes.Grace); with two readings a second
// that is known half a second later at most.
const (
	minSignalsPeriod = 500 * time.Millisecond
	maxSignalsPeriod = time.Minute
)

func defaultSignals() Signals { return Signals{Period: minSignalsPeriod} }

// Metrics configures metrics that cost something.
type Metrics struct {
	// ServiceConnections selects the Services whose connections are counted by outcome.
	ServiceConnections string
}

// Values of Metrics.ServiceConnections.
const (
	ConnectionsWatched = "Watched" // Services whose policy has a plugin that needs outcomes
	ConnectionsAll     = "All"
)

func defaultMetrics() Metrics { return Metrics{ServiceConnections: ConnectionsWatched} }

type signalsEntry struct {
	Period string `json:"period"`
}

type metricsEntry struct {
	ServiceConnections string `json:"serviceConnections"`
}

func (p *parser) signals(f *configFile, c *Config) {
	p.duration("signals.period", f.Signals.Period, minSignalsPeriod, &c.Signals.Period)
	if c.Signals.Period > maxSignalsPeriod {
		p.errorf("signals.period", "%s is more than %s", c.Signals.Period, maxSignalsPeriod)
	}
	switch s := f.Metrics.ServiceConnections; s {
	case "":
	case ConnectionsWatched, ConnectionsAll:
		c.Metrics.ServiceConnections = s
	default:
		p.errorf("metrics.serviceConnections", "%q: must be %s or %s", s, ConnectionsWatched, ConnectionsAll)
	}
}

func (c *Config) effectiveSignals(f *configFile) {
	f.Signals = signalsEntry{Period: c.Signals.Period.String()}
	f.Metrics = metricsEntry(c.Metrics)
}
