package metrics

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
)

type changeCounts struct{ services, slices int }

// maxTriggers bounds the number of triggers kept while programming fails.
const maxTriggers = 1 << 16

// OnEnqueue implements engine.Observer.
func (m *Metrics) OnEnqueue(changes []model.Change, at time.Time) {
	var n changeCounts
	var seen [2]bool
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case model.ServiceKind:
			n.services++
			for _, f := range families {
				seen[familyIndex(f)] = seen[familyIndex(f)] || c.Service == nil
			}
			if c.Service != nil {
				for _, a := range c.Service.ClusterIPs {
					seen[familyIndex(model.FamilyOf(a))] = true
				}
			}
		case model.SliceKind:
			n.slices++
			if c.Slice != nil {
				seen[familyIndex(c.Slice.Family)] = true
			} else {
				seen = [2]bool{true, true}
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queued.services += n.services
	m.queued.slices += n.slices
	m.kubeProxy.servicesTotal.Add(float64(n.services))
	m.kubeProxy.endpointsTotal.Add(float64(n.slices))
	m.setPending()
	for _, f := range families {
		if seen[familyIndex(f)] {
			m.kubeProxy.lastQueued.of(f).Set(seconds(at))
		}
	}
}

// OnDequeue implements engine.Observer.
func (m *Metrics) OnDequeue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dequeued.services += m.queued.services
	m.dequeued.slices += m.queued.slices
	m.queued = changeCounts{}
}

// OnPlan implements engine.Observer.
func (m *Metrics) OnPlan(p *engine.PlannedStep) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := p.Result
	m.state.totals, m.state.degraded, m.state.planned = s.Totals, p.Degraded, true
	m.planTook, m.changedFamilies = p.Duration, [2]bool{}
	for i := range s.Delta.Changes {
		m.changedFamilies[familyIndex(s.Delta.Changes[i].Key.Family())] = true
	}
	if s.Delta.Global != nil {
		m.markProgrammedFamilies()
	}
	for _, t := range s.Triggers {
		if t.At > m.opt.Started.UnixMilli() && len(m.triggers) < maxTriggers {
			m.triggers = append(m.triggers, t)
		}
	}
	if s.Planned > 0 || !s.Delta.Empty() {
		m.sluice.planned.Observe(p.Duration.Seconds())
	}
	m.sluice.policyFailures.Add(float64(len(s.Errors)))
	m.kubeProxy.deferred.Add(float64(s.UDPDrains.Kept))
	m.kubeProxy.flushed.Add(float64(s.UDPDrains.Expired))
	m.shadows.update(s.Shadows)
	if s.PluginCounters != nil {
		m.state.counters = s.PluginCounters
	}
	m.connections.update(s.Connections, s.PolicyConnections)
	for _, f := range families {
		t := s.Totals.Family.At(f)
		m.kubeProxy.noLocal.internal.of(f).Set(float64(t.NoLocalInternal))
		m.kubeProxy.noLocal.external.of(f).Set(float64(t.NoLocalExternal))
	}
}

// markProgrammedFamilies marks the families that have frontends, or IPv4 if none has.
func (m *Metrics) markProgrammedFamilies() {
	found := false
	for _, f := range families {
		for _, n := range m.state.totals.Family.At(f).Frontends {
			if n > 0 {
				m.changedFamilies[familyIndex(f)], found = true, true
			}
		}
	}
	if !found {
		m.changedFamilies[0] = true
	}
}

// OnApply implements engine.Observer.
func (m *Metrics) OnApply(p *engine.ApplyResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Attempted {
		m.observeProgrammed(p)
		m.state.unprogrammed = p.Unprogrammed
	}
	if !p.Synced {
		return
	}
	m.dequeued = changeCounts{}
	m.setPending()
	for _, f := range families {
		m.kubeProxy.last.of(f).Set(seconds(p.At))
	}
	for _, t := range m.triggers {
		took := p.At.Sub(time.UnixMilli(t.At))
		m.kubeProxy.programming.of(t.Family).Observe(max(0, took.Seconds()))
	}
	m.triggers = m.triggers[:0]
}

func (m *Metrics) observeProgrammed(p *engine.ApplyResult) {
	m.sluice.messages.Add(float64(p.Report.Messages))
	m.sluice.elements.Add(float64(p.Report.Elements))
	phase, durations, failures := "program", m.sluice.programmed, m.kubeProxy.syncFailures
	if p.FullSync || p.Cleanup {
		m.markProgrammedFamilies()
	}
	if p.Cleanup {
		phase, durations, failures = "cleanup", m.sluice.cleanedUp, m.kubeProxy.cleanupFailures
	}
	durations.Observe(p.Duration.Seconds())
	if p.Err != nil {
		m.sluice.failures.WithLabelValues(phase).Inc()
		m.sluice.failuresByErrno.WithLabelValues(errno(p.Err)).Inc()
	}
	for _, f := range families {
		if !m.changedFamilies[familyIndex(f)] {
			continue
		}
		if p.Err != nil && m.opt.CurrentMode().NFTables {
			failures.WithLabelValues(f.String()).Inc()
		}
		if p.Cleanup {
			continue
		}
		took := (m.planTook + p.Duration).Seconds()
		m.kubeProxy.sync.of(f).Observe(took)
		if p.FullSync {
			m.kubeProxy.full.of(f).Observe(took)
		} else {
			m.kubeProxy.partial.of(f).Observe(took)
		}
	}
}

// OnEvent implements engine.Observer.
func (m *Metrics) OnEvent(n engine.Event) {
	operation := ""
	switch n.Kind {
	case engine.CheckpointSaved:
		operation = "checkpoint"
		if n.Err == nil {
			m.mu.Lock()
			m.state.checkpoint, m.state.omittedStates = n.At, n.Omitted
			m.mu.Unlock()
		}
	case engine.ConnectionsReset:
		operation = "reset"
		m.sluice.connectionsReset.Add(float64(n.Count))
		m.sluice.uncertainResets.Add(float64(n.Omitted))
	case engine.ConnectionsShed:
		operation = "shed"
		m.sluice.connectionsShed.Add(float64(n.Count))
		m.sluice.uncertainResets.Add(float64(n.Omitted))
	case engine.UnrepliedDeleted:
		operation = "conntrack"
		m.sluice.unrepliedDeleted.Add(float64(n.Count))
		m.sluice.unrepliedOmitted.Add(float64(n.Omitted))
	case engine.DriftDetected:
		m.sluice.externalChanges.Add(float64(n.Count))
	case engine.OutcomesRead, engine.ConnectionsCounted:
		operation = signalLabels[n.Kind]
		m.connections.signal(n)
	case engine.StaleFlowsDeleted:
		operation = "conntrack"
		f := n.Family.String()
		m.kubeProxy.staleDuration.WithLabelValues(f).Observe(n.Duration.Seconds())
		m.kubeProxy.staleDeleted.WithLabelValues(f).Add(float64(n.Count))
		m.sluice.staleOmitted.Add(float64(n.Omitted))
	case engine.UDPFlowsKept:
		m.kubeProxy.preserved.Set(float64(n.Count))
	}
	if n.Err != nil && operation != "" {
		m.sluice.failures.WithLabelValues(operation).Inc()
	}
}

func (m *Metrics) setPending() {
	m.kubeProxy.servicesPending.Set(float64(m.queued.services + m.dequeued.services))
	m.kubeProxy.endpointsPending.Set(float64(m.queued.slices + m.dequeued.slices))
}

// errno returns the name of the error's errno for use as a label value, or other.
func errno(err error) string {
	var e syscall.Errno
	if errors.As(err, &e) {
		if name := unix.ErrnoName(e); name != "" {
			return name
		}
	}
	return "other"
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
