package tally

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Summary is what a Service contributes to the Totals; the zero value contributes nothing.
type Summary struct {
	counted bool // the Service exists
	Failing bool
	Limited bool
	Choice  Choice // of the annotation that names the policy
	// The settings that the Service has set are in force, or refused.
	OwnSettings, RefusedSettings bool
	Held                         int // endpoints that count as ready although they are not
	// HeldCluster: held in a cluster pool.
	HeldCluster bool
	hints       eligibility.HintsIgnored // why topology hints are not followed
	family      ByFamily[familySummary]
	Policy      PolicyTotals
	Shadow      ShadowSummary
	fallbacks   []PluginFallback
	Health      HealthCheck
}

type familySummary struct {
	endpoints                        [plan.Draining + 1]int
	noLocalInternal, noLocalExternal bool
}

// Builder adds up the ports of a Service.
type Builder struct {
	summary  Summary
	local    ByFamily[[]netip.Addr] // ready addresses on this node
	draining []netip.AddrPort
}

// Draining returns the endpoints that drain.
func (b *Builder) Draining() []netip.AddrPort { return b.draining }

// Add adds a port.
func (b *Builder) Add(svc *model.Service, d *policy.PortDecision) {
	s, p := &b.summary, d.Port
	of := s.family.At(p.Family)
	b.countEndpoints(&of.endpoints, d)
	for j := range p.Endpoints {
		if e := &p.Endpoints[j]; e.HeldCluster || e.HeldLocal {
			s.Held++
			s.HeldCluster = s.HeldCluster || e.HeldCluster
		}
	}
	if p.UsesLocal && p.HasEligible && !slices.ContainsFunc(p.Endpoints, func(e eligibility.Endpoint) bool { return e.InLocal }) {
		of.noLocalInternal = of.noLocalInternal || svc.InternalLocal
		of.noLocalExternal = of.noLocalExternal || svc.ExternalLocal && eligibility.IsExternal(svc, &p.Spec, p.Family)
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

// Summary returns the summary of a Service whose policy fails or not.
func (b *Builder) Summary(svc *model.Service, failing bool) Summary {
	s := b.summary
	s.counted, s.Failing = true, failing
	if svc.HealthCheckNodePort != 0 {
		s.Health = HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, f := range model.Families {
			*s.Health.Serves.At(f) = svc.HasFamily(f)
			*s.Health.Local.At(f) = countAddrs(*b.local.At(f))
		}
	}
	return s
}

// countEndpoints counts the endpoints that are in a pool of a Service port.
func (b *Builder) countEndpoints(endpoints *[plan.Draining + 1]int, d *policy.PortDecision) {
	for i := range d.Port.Endpoints {
		switch active, draining := d.Use(i); {
		case active:
			endpoints[plan.Active]++
		case draining:
			endpoints[plan.Draining]++
			b.draining = append(b.draining, d.Port.Endpoints[i].Addr)
		}
	}
}

// countDecision adds a decision to the summary.
func (s *Summary) countDecision(d *policy.Decision) {
	if d.Policy == "" {
		return
	}
	s.Policy.Policy = d.Policy
	s.Policy.Decisions[d.Origin]++
	if d.Shadow != nil {
		s.Shadow.add(d.Shadow)
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

// countAddrs returns how many different addresses there are. It sorts them.
func countAddrs(addrs []netip.Addr) int {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
