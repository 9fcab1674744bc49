package planner

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/service"
)

// summary is what a Service contributes to the Totals.
type summary struct {
	counted bool // the Service exists
	failing bool
	limited bool
	choice  Choice // of the annotation that names the policy
	// The settings that the Service has set are in force, or refused.
	ownSettings, refusedSettings bool
	held                         int // endpoints that count as ready although they are not
	// heldCluster: held in a cluster pool.
	heldCluster bool
	hints       service.HintsIgnored // why topology hints are not followed
	family      ByFamily[familySummary]
	policy      PolicyTotals
	shadow      shadowSummary
	fallbacks   []PluginFallback
	health      HealthCheck
}

type familySummary struct {
	endpoints                        [plan.Draining + 1]int
	noLocalInternal, noLocalExternal bool
}

// summaryBuilder adds up the ports of a Service.
type summaryBuilder struct {
	summary summary
	local   ByFamily[[]netip.Addr] // ready addresses on this node
	// draining are the endpoints that drain.
	draining []netip.AddrPort
}

// add adds a port.
func (b *summaryBuilder) add(svc *model.Service, d *PortDecision) {
	s, p := &b.summary, d.Port
	of := s.family.At(p.Family)
	b.countEndpoints(&of.endpoints, d)
	for j := range p.Endpoints {
		if e := &p.Endpoints[j]; e.HeldCluster || e.HeldLocal {
			s.held++
			s.heldCluster = s.heldCluster || e.HeldCluster
		}
	}
	if p.UsesLocal && p.HasEligible && !slices.ContainsFunc(p.Endpoints, func(e service.Endpoint) bool { return e.InLocal }) {
		of.noLocalInternal = of.noLocalInternal || svc.InternalLocal
		of.noLocalExternal = of.noLocalExternal || svc.ExternalLocal && service.IsExternal(svc, &p.Spec, p.Family)
	}
	if p.UsesCluster {
		s.hints = max(s.hints, p.Hints.Why)
		s.countDecision(&d.Cluster)
	}
	if p.UsesLocal {
		s.countDecision(&d.Local)
	}
	if svc.HealthCheckNodePort == 0 {
		return
	}
	at := b.local.At(p.Family)
	for j := range p.Endpoints {
		if e := &p.Endpoints[j]; e.Local && e.Ready {
			*at = append(*at, e.Addr.Addr())
		}
	}
}

// summarize returns the summary.
func (b *summaryBuilder) summarize(svc *model.Service, failing bool) summary {
	s := b.summary
	s.counted, s.failing = true, failing
	if svc.HealthCheckNodePort != 0 {
		s.health = HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, f := range families {
			*s.health.Serves.At(f) = hasFamily(svc, f)
			*s.health.Local.At(f) = len(sortedAddrs(*b.local.At(f)))
		}
	}
	return s
}

// countEndpoints counts the endpoints that are in a pool of a Service port.
func (b *summaryBuilder) countEndpoints(endpoints *[plan.Draining + 1]int, d *PortDecision) {
	for i := range d.Port.Endpoints {
		phase, ok := d.phase(i)
		if !ok {
			continue
		}
		if endpoints[phase]++; phase == plan.Draining {
			b.draining = append(b.draining, d.Port.Endpoints[i].Addr)
		}
	}
}

// countDecision adds a decision to the summary.
func (s *summary) countDecision(d *policy.Decision) {
	if d.Policy == "" {
		return
	}
	s.policy.Policy = d.Policy
	s.policy.Decisions[d.Origin]++
	if d.Shadow != nil {
		s.shadow.add(d.Shadow)
	}
	if d.Err == nil || errors.Is(d.Err, policy.ErrPending) || len(d.Steps) == 0 {
		return
	}
	plugin := d.Steps[len(d.Steps)-1].Plugin // a chain stops at the plugin that fails
	i := slices.IndexFunc(s.fallbacks, func(f PluginFallback) bool { return f.Plugin == plugin })
	if i < 0 {
		i = len(s.fallbacks)
		s.fallbacks = append(s.fallbacks, PluginFallback{Plugin: plugin})
	}
	if d.Origin == policy.FromLastGood {
		s.fallbacks[i].LastGood++
	} else {
		s.fallbacks[i].Default++
	}
}
