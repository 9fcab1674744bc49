// Package metrics counts what the proxy does, for Prometheus: kube-proxy's metrics under their own names where they
// mean the same, and sluice's beside them. It is an engine.Observer; what a change costs here does not depend on the
// size of the cluster.
package metrics

import (
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// Options of Metrics.
type Options struct {
	Mode string // the data plane: nftables, …
	// InForce gives the mode at each scrape, where it may change; nil: it is Mode.
	InForce func() string
	Version string    // of sluice
	Started time.Time // of this process: what led to a change before is not its latency
	// Plugins gives the counts of each plugin, sorted by name, at each scrape; nil: there are none.
	Plugins func() []PluginStats
	// IPVS reads what the kernel counts of virtual servers, sorted, if that is wanted; nil: it never is. It is called at
	// a scrape, one at a time, and not again for some seconds by Now.
	IPVS func() (servers []IPVSServer, wanted bool, err error)
	Now  func() time.Time // for IPVS
}

// PluginStats are the counts of one plugin since the process started, over all its revisions and settings.
type PluginStats struct {
	Plugin      string
	Calls       uint64 // those that reached the module
	Failures    uint64 // of those
	Fuel        uint64 // used by them
	LogDropped  uint64 // lines of its log that went over the limits
	MemoryBytes uint64 // of its present instances
	Suspended   bool   // any of its instances is
}

// Metrics is a registry of its own with all metrics in it. All methods may be called from several goroutines.
type Metrics struct {
	opt      Options
	registry *prometheus.Registry
	kube     *kubeProxy
	own      *own

	mu       sync.Mutex
	source   Source
	state    state
	waiting  queued // not taken yet
	taken    queued // taken, and not in the data plane
	took     time.Duration
	touched  [2]bool        // the families that the step under way changes
	triggers []plan.Trigger // of what is not in the data plane
}

type queued struct{ services, slices int }

// maxTriggers bounds what is remembered while nothing can be programmed.
const maxTriggers = 1 << 16

// New makes all metrics.
func New(o Options) *Metrics {
	if o.InForce == nil {
		o.InForce = func() string { return o.Mode }
	}
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &Metrics{opt: o, registry: r, kube: newKubeProxy(r), own: newOwn(r, o)}
	r.MustRegister(&stateCollector{m: m}, &modeCollector{m: m})
	if o.IPVS != nil {
		r.MustRegister(&ipvsCollector{now: o.Now, read: o.IPVS})
	}
	return m
}

// Registry holds all metrics.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Answered counts an answer of a health server, on /healthz or /livez.
func (m *Metrics) Answered(path string, code int) {
	switch path {
	case "/healthz":
		m.kube.healthz.WithLabelValues(status(code)).Inc()
	case "/livez":
		m.kube.livez.WithLabelValues(status(code)).Inc()
	}
}

// SourceProblems says how many problems the source of cluster state has now.
func (m *Metrics) SourceProblems(errors, warnings int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.sourceErrors, m.state.sourceWarnings = errors, warnings
}

// OnEnqueue implements engine.Observer.
func (m *Metrics) OnEnqueue(changes []model.Change, at time.Time) {
	var n queued
	var seen [2]bool
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case model.ServiceKind:
			n.services++
			for _, f := range families {
				seen[index(f)] = seen[index(f)] || c.Service == nil
			}
			if c.Service != nil {
				for _, a := range c.Service.ClusterIPs {
					seen[index(model.FamilyOf(a))] = true
				}
			}
		case model.SliceKind:
			n.slices++
			if c.Slice != nil {
				seen[index(c.Slice.Family)] = true
			} else {
				seen = [2]bool{true, true}
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting.services += n.services
	m.waiting.slices += n.slices
	m.kube.servicesTotal.Add(float64(n.services))
	m.kube.endpointsTotal.Add(float64(n.slices))
	m.pending()
	for _, f := range families {
		if seen[index(f)] {
			m.kube.lastQueued.WithLabelValues(f.String()).Set(seconds(at))
		}
	}
}

// OnDequeue implements engine.Observer.
func (m *Metrics) OnDequeue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken.services += m.waiting.services
	m.taken.slices += m.waiting.slices
	m.waiting = queued{}
}

// OnPlan implements engine.Observer.
func (m *Metrics) OnPlan(p *engine.PlannedStep) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := p.Step
	m.state.totals, m.state.degraded, m.state.planned = s.Totals, p.Degraded, true
	m.took, m.touched = p.Duration, [2]bool{}
	for i := range s.Delta.Changes {
		m.touched[index(s.Delta.Changes[i].Key.Family())] = true
	}
	if s.Delta.Global != nil {
		m.touchHeld()
	}
	for _, t := range s.Triggers {
		if t.At > m.opt.Started.UnixMilli() && len(m.triggers) < maxTriggers {
			m.triggers = append(m.triggers, t)
		}
	}
	if s.Planned > 0 || !s.Delta.Empty() {
		m.own.phases.WithLabelValues("plan").Observe(p.Duration.Seconds())
	}
	m.own.failures.WithLabelValues("policy").Add(float64(len(s.Errors)))
	for _, f := range families {
		t := s.Totals.Family.At(f)
		m.kube.noLocal.WithLabelValues("internal", f.String()).Set(float64(t.NoLocalInternal))
		m.kube.noLocal.WithLabelValues("external", f.String()).Set(float64(t.NoLocalExternal))
	}
}

// touchHeld marks the families that have frontends, or IPv4 when none has.
func (m *Metrics) touchHeld() {
	any := false
	for _, f := range families {
		for _, n := range m.state.totals.Family.At(f).Frontends {
			if n > 0 {
				m.touched[index(f)], any = true, true
			}
		}
	}
	if !any {
		m.touched[0] = true
	}
}

// OnApply implements engine.Observer.
func (m *Metrics) OnApply(p *engine.ApplyResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Attempted {
		m.programmed(p)
		m.state.stuck = p.Unprogrammed
	}
	if !p.Synced {
		return
	}
	m.taken = queued{}
	m.pending()
	for _, f := range families {
		m.kube.last.WithLabelValues(f.String()).Set(seconds(p.At))
	}
	for _, t := range m.triggers {
		took := p.At.Sub(time.UnixMilli(t.At))
		m.kube.programming.WithLabelValues(t.Family.String()).Observe(max(0, took.Seconds()))
	}
	m.triggers = m.triggers[:0]
}

func (m *Metrics) programmed(p *engine.ApplyResult) {
	m.own.messages.Add(float64(p.Report.Messages))
	m.own.elements.Add(float64(p.Report.Elements))
	phase, failures := "program", m.kube.syncFailures
	if p.FullSync || p.Cleanup {
		m.touchHeld()
	}
	if p.Cleanup {
		phase, failures = "cleanup", m.kube.cleanupFailures
	}
	m.own.phases.WithLabelValues(phase).Observe(p.Duration.Seconds())
	if p.Err != nil {
		m.own.failures.WithLabelValues(phase).Inc()
		m.own.errnos.WithLabelValues(errno(p.Err)).Inc()
	}
	for _, f := range families {
		if !m.touched[index(f)] {
			continue
		}
		if p.Err != nil && m.opt.InForce() == "nftables" {
			failures.WithLabelValues(f.String()).Inc()
		}
		if p.Cleanup {
			continue
		}
		took := (m.took + p.Duration).Seconds()
		m.kube.sync.WithLabelValues(f.String()).Observe(took)
		if p.FullSync {
			m.kube.full.WithLabelValues(f.String()).Observe(took)
		} else {
			m.kube.partial.WithLabelValues(f.String()).Observe(took)
		}
	}
}

// OnEvent implements engine.Observer.
func (m *Metrics) OnEvent(n engine.Event) {
	kind := ""
	switch n.Kind {
	case engine.CheckpointSaved:
		kind = "checkpoint"
		if n.Err == nil {
			m.mu.Lock()
			m.state.checkpoint = n.At
			m.mu.Unlock()
		}
	case engine.ConnectionsReset:
		kind = "reset"
		m.own.reset.Add(float64(n.Count))
	case engine.DriftDetected:
		m.own.foreign.Add(float64(n.Count))
	case engine.StaleFlowsDeleted:
		kind = "conntrack"
		f := n.Family.String()
		m.kube.staleDuration.WithLabelValues(f).Observe(n.Duration.Seconds())
		m.kube.staleDeleted.WithLabelValues(f).Add(float64(n.Count))
	}
	if n.Err != nil && kind != "" {
		m.own.failures.WithLabelValues(kind).Inc()
	}
}

func (m *Metrics) pending() {
	m.kube.servicesPending.Set(float64(m.waiting.services + m.taken.services))
	m.kube.endpointsPending.Set(float64(m.waiting.slices + m.taken.slices))
}

// errno names the kernel's reason, for a label: there are few of them.
func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		if name := unix.ErrnoName(e); name != "" {
			return name
		}
	}
	return "other"
}

func index(f model.Family) int {
	if f == model.IPv6 {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
