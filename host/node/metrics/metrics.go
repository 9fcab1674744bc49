// Package metrics exports Prometheus metrics: kube-proxy's, under their own names where they mean the same, and sluice's
// own. It implements engine.Observer. The cost of a change does not depend on the size of the cluster.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-proxy/sluice/host/core/planner"
)

// Options of Metrics.
type Options struct {
	Mode Mode // at startup
	// CurrentMode returns the mode at each scrape if it can change; nil means it is always Mode.
	CurrentMode func() Mode
	Version     string    // of sluice
	Started     time.Time // of this process; earlier triggers are not counted as programming latency
	// Configuration returns what is in force, at each scrape; nil means that it is not reported.
	Configuration func() Configuration
	// Plugins returns the statistics of all plugins, sorted by name, at each scrape; nil means there are none.
	Plugins func() []PluginStats
	// PluginMemory returns the host memory of all plugins and its limit in bytes, at each scrape; nil means there are none.
	PluginMemory func() (used, limit int64)
	// Affinity returns how many clients with session affinity are recorded, nil while that is not known; nil means it
	// never is.
	Affinity func() *AffinityUsage
	// IPVS reads the kernel's statistics of virtual servers, sorted, if they are enabled; nil means they never are. Calls
	// are made at scrapes, one at a time, and at least some seconds of Now apart.
	IPVS func() (servers []IPVSVirtualServer, enabled bool, err error)
	// Recording returns the state of the recording at each scrape, nil if there is none; nil means there never is.
	Recording func() *Recording
	Now       func() time.Time // for IPVS
	// LocalhostNodePorts returns the state of NodePorts on loopback addresses, at each scrape; nil means there are none.
	LocalhostNodePorts func() LocalhostNodePorts
	// Retries returns what has become of refused connections, at each scrape, and false if it cannot; nil means that nobody
	// counts them.
	Retries func() (Retries, bool)
	// Offload returns how connections of policies with a trafficHint are forwarded, at each scrape; nil means there are none.
	Offload func() Offload
}

// AffinityUsage is how many clients with session affinity are recorded.
type AffinityUsage struct {
	Counted    bool // the kernel counts them
	IPv4, IPv6 int  // clients
	Full       int  // Service ports that have no room for more
}

// PluginStats contains the statistics of one plugin since the process started, across all its revisions and settings.
type PluginStats struct {
	Plugin      string
	Calls       uint64 // that reached the module
	Failures    uint64 // of Calls
	OutOfFuel   uint64 // of Failures
	Late        uint64 // of Failures: more CPU time than a call may take
	Fuel        uint64 // consumed by Calls
	LogDropped  uint64 // log lines dropped by the limits
	MemoryBytes uint64 // host memory of its current instances
	Instances   int    // current ones
	Evicted     uint64 // instances closed to make room for those of other namespaces
	Repeats     PluginRepeats
	RepeatFuel  uint64 // consumed by repeats, in addition to Fuel
	Settings    PluginSettings
	Suspended   PluginSuspended
	Queued      int           // calls that have not begun
	CPU         time.Duration // used by Calls
	Throttled   time.Duration // for which calls have waited because the plugin had used up its share of CPU time
}

// PluginSuspended counts what of a plugin is suspended.
type PluginSuspended struct {
	Ports, Namespaces, Settings, Modules int
	Forgotten                            uint64 // failures for which there was no room
}

// PluginSettings counts the settings of a plugin.
type PluginSettings struct {
	Handles                      int    // in its current instances
	Recycled                     uint64 // instances replaced because of the settings in them
	Accepted, Refused, Throttled uint64 // settings of Services
}

// PluginRepeats counts decisions that were to be repeated in a second instance, by result.
type PluginRepeats struct {
	Equal, Different uint64
	Failed           uint64 // the second instance gave no answer
	Skipped          uint64 // repeats had used up their share of fuel, or plugins the memory for more instances
}

// Metrics is a registry with all metrics. It is safe for concurrent use.
type Metrics struct {
	opt              Options
	registry         *prometheus.Registry
	requestDurations *prometheus.HistogramVec // verb, host
	kubeProxy        *kubeProxyMetrics
	sluice           *sluiceMetrics
	// connections of Services, and the signals that plugins get
	connections connections
	shadows     shadows

	mu              sync.Mutex
	source          Source
	state           planState
	queued          changeCounts // not dequeued by the engine yet
	dequeued        changeCounts // dequeued but not programmed
	planTook        time.Duration
	changedFamilies [2]bool           // the families that the current step changes
	triggers        []planner.Trigger // of changes that are not programmed
}

// New creates and registers all metrics.
func New(o Options) *Metrics {
	if o.CurrentMode == nil {
		o.CurrentMode = func() Mode { return o.Mode }
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{opt: o, registry: r, kubeProxy: newKubeProxyMetrics(r), sluice: newSluiceMetrics(r), connections: newConnections(), requestDurations: newRequestDurations()}
	r.MustRegister(m.requestDurations, &stateCollector{m: m}, &modeCollector{m: m})
	if o.Configuration != nil {
		r.MustRegister(&configurationCollector{read: o.Configuration})
	}
	if o.Recording != nil {
		r.MustRegister(&recordingCollector{read: o.Recording})
	}
	if o.LocalhostNodePorts != nil {
		r.MustRegister(&localhostCollector{read: o.LocalhostNodePorts})
	}
	if o.Retries != nil {
		r.MustRegister(&retriesCollector{read: o.Retries})
	}
	if o.Offload != nil {
		r.MustRegister(&offloadCollector{read: o.Offload})
	}
	if o.IPVS != nil {
		r.MustRegister(&ipvsCollector{now: o.Now, read: o.IPVS})
	}
	return m
}

// Registry returns the registry with all metrics.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// CountHealthCheck counts a response of the health server on /healthz or /livez.
func (m *Metrics) CountHealthCheck(path string, code int) {
	switch path {
	case "/healthz":
		m.kubeProxy.healthz.WithLabelValues(formatCode(code)).Inc()
	case "/livez":
		m.kubeProxy.livez.WithLabelValues(formatCode(code)).Inc()
	}
}

// CountEvictedConnection counts a connection that a server closed because it had too many.
func (m *Metrics) CountEvictedConnection(server string) {
	m.sluice.evictedConnections.WithLabelValues(server).Inc()
}

// SetSourceProblems sets the number of problems in the current cluster state.
func (m *Metrics) SetSourceProblems(errors, warnings int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.sourceErrors, m.state.sourceWarnings = errors, warnings
}
