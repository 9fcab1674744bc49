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
	policy      *policySummary // nil: none has decided
	health      *HealthCheck   // nil: the Service has had no port for it
}

type familySummary struct {
	endpoints                        [plan.Draining + 1]int32
	noLocalInternal, noLocalExternal bool
}

type policySummary struct {
	name      string
	decisions [policy.FromLastGood + 1]int
	shadow    ShadowSummary
	fallbacks []PluginFallback
}

// Policy returns the name of the policy that has decided, "" for none.
func (s *Summary) Policy() string {
	if s.policy == nil {
		return ""
	}
	return s.policy.name
}

// Shadow returns the summary of the shadow of the policy.
func (s *Summary) Shadow() ShadowSummary {
	if s.policy == nil {
		return ShadowSummary{}
	}
	return s.policy.shadow
}

// Health returns the health check of the Service.
func (s *Summary) Health() HealthCheck {
	if s.health == nil {
		return HealthCheck{}
	}
	return *s.health
}

// EndHealth makes the health check, if there is none, the end of that before.
func (s *Summary) EndHealth(before *Summary) {
	if s.health == nil && before.health != nil {
		s.health = &HealthCheck{Service: before.health.Service}
	}
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
		s.health = &HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, f := range model.Families {
			*s.health.Serves.At(f) = svc.HasFamily(f)
			*s.health.Local.At(f) = countAddrs(*b.local.At(f))
		}
	}
	return s
}

// countEndpoints counts the endpoints that are in a pool of a Service port.
func (b *Builder) countEndpoints(endpoints *[plan.Draining + 1]int32, d *policy.PortDecision) {
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
	if s.policy == nil {
		s.policy = &policySummary{}
	}
	p := s.policy
	p.name = d.Policy
	p.decisions[d.Origin]++
	if d.Shadow != nil {
		p.shadow.add(d.Shadow)
	}
	if d.Err == nil || errors.Is(d.Err, policy.ErrPending) || len(d.Steps) == 0 {
		return
	}
	plugin := d.Steps[len(d.Steps)-1].Plugin // a chain stops at the plugin that fails
	i := slices.IndexFunc(p.fallbacks, func(f PluginFallback) bool { return f.Plugin == plugin })
	if i < 0 {
		i = len(p.fallbacks)
		p.fallbacks = append(p.fallbacks, PluginFallback{Plugin: plugin})
	}
	if d.Origin == policy.FromLastGood {
		p.fallbacks[i].LastGood++
	} else {
		p.fallbacks[i].Default++
	}
}

// countAddrs returns how many different addresses there are. It sorts them.
func countAddrs(addrs []netip.Addr) int {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return len(slices.Compact(addrs))
}
