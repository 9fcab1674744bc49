package planner

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
)

// ByFamily is something for each IP family.
type ByFamily[T any] [2]T

// At gives the place of a family.
func (b *ByFamily[T]) At(f model.Family) *T {
	if f == model.IPv6 {
		return &b[1]
	}
	return &b[0]
}

// Totals are running counts over the plan. Keeping them costs what a change costs.
type Totals struct {
	Services  int // in the plan
	Failing   int // Services whose policy is not to be found, or does not answer
	Conflicts int // frontends that a Service wants and another one has
	Family    ByFamily[FamilyTotals]
	Policies  []PolicyTotals   // sorted by name; not to be changed
	Fallbacks []PluginFallback // sorted by plugin; not to be changed
}

// FamilyTotals are the counts of a family.
type FamilyTotals struct {
	Frontends [plan.NodePort + 1]int // by Kind
	Endpoints [plan.Draining + 1]int // by Phase; an endpoint of a Service port counts once, as active when it is so anywhere
	// Services with a traffic policy Local whose endpoints are all on other nodes.
	NoLocalInternal, NoLocalExternal int
}

// PolicyTotals are the counts of a policy. A decision is for one list of one Service port in one family.
type PolicyTotals struct {
	Policy    string
	Decisions [policy.FromObserve + 1]int // by policy.From
	// Of a policy that observes: the endpoints that it or the default rules would use, and those of them whose share
	// of new connections would be another.
	Observed, Differing int
}

// PluginFallback counts the decisions that hold because a plugin does not answer. One that is still to be asked is not
// meant.
type PluginFallback struct {
	Plugin            string
	LastGood, Default int
}

// HealthCheck is what a load balancer is told of a Service on its health check port.
type HealthCheck struct {
	Service model.Name
	Port    uint16 // 0: the Service has none any more
	// Serves tells the families that the Service has, Local counts its ready endpoint addresses on this node.
	Serves ByFamily[bool]
	Local  ByFamily[int]
}

// NodeStatus is what others are told of this node.
type NodeStatus struct {
	// Eligible: the Node exists and is not about to go, so that load balancers may send to it.
	Eligible bool
	// HealthAddrs are where health check ports listen, sorted; the unspecified address of a family stands for all.
	HealthAddrs []netip.Addr
}

// Trigger is when what led to a change of endpoints happened.
type Trigger struct {
	At     int64 // Unix milliseconds
	Family model.Family
}

// account keeps the Totals.
type account struct {
	totals    Totals
	policies  map[string]*PolicyTotals
	fallbacks map[string]*PluginFallback
	stale     bool // Policies and Fallbacks are to be listed again
	own       NodeStatus
	triggers  []Trigger
}

// summary is a Service's part of the Totals.
type summary struct {
	counted   bool // as a Service
	failing   bool
	family    ByFamily[familySummary]
	policy    PolicyTotals
	fallbacks []PluginFallback
	health    HealthCheck
}

type familySummary struct {
	endpoints                        [plan.Draining + 1]int
	noLocalInternal, noLocalExternal bool
}

// note takes a Service's new summary in, in the place of the old one.
func (a *account) note(old, now *summary, step *Result) {
	a.add(old, -1)
	a.add(now, 1)
	if old.health != now.health {
		step.HealthChecks = append(step.HealthChecks, now.health)
	}
}

func (a *account) add(s *summary, sign int) {
	t := &a.totals
	count := func(n *int, is bool) {
		if is {
			*n += sign
		}
	}
	count(&t.Services, s.counted)
	count(&t.Failing, s.failing)
	for i := range s.family {
		of, all := &s.family[i], &t.Family[i]
		for phase, n := range of.endpoints {
			all.Endpoints[phase] += sign * n
		}
		count(&all.NoLocalInternal, of.noLocalInternal)
		count(&all.NoLocalExternal, of.noLocalExternal)
	}
	if s.policy.Policy != "" {
		p := a.policies[s.policy.Policy]
		if p == nil {
			p = &PolicyTotals{Policy: s.policy.Policy}
			a.policies[p.Policy] = p
		}
		for from, n := range s.policy.Decisions {
			p.Decisions[from] += sign * n
		}
		p.Observed += sign * s.policy.Observed
		p.Differing += sign * s.policy.Differing
		a.stale = true
	}
	for _, fb := range s.fallbacks {
		f := a.fallbacks[fb.Plugin]
		if f == nil {
			f = &PluginFallback{Plugin: fb.Plugin}
			a.fallbacks[fb.Plugin] = f
		}
		f.LastGood += sign * fb.LastGood
		f.Default += sign * fb.Default
		a.stale = true
	}
}

// finish completes a step's account.
func (p *Planner) finish(step *Result) {
	a := &p.account
	count := func(f *plan.Frontend, sign int) {
		if f != nil {
			a.totals.Family.At(f.Key.Family()).Frontends[f.Kind] += sign
		}
	}
	for _, c := range step.Delta.Changes {
		count(c.Old, -1)
		count(c.New, 1)
	}
	a.totals.Conflicts = p.builder.waiting
	if a.stale {
		a.stale = false
		a.totals.Policies, a.totals.Fallbacks = nil, nil
		for name, t := range a.policies {
			if *t == (PolicyTotals{Policy: name}) {
				delete(a.policies, name)
				continue
			}
			a.totals.Policies = append(a.totals.Policies, *t)
		}
		for name, f := range a.fallbacks {
			if f.LastGood == 0 && f.Default == 0 {
				delete(a.fallbacks, name)
				continue
			}
			a.totals.Fallbacks = append(a.totals.Fallbacks, *f)
		}
		slices.SortFunc(a.totals.Policies, func(x, y PolicyTotals) int { return cmp.Compare(x.Policy, y.Policy) })
		slices.SortFunc(a.totals.Fallbacks, func(x, y PluginFallback) int { return cmp.Compare(x.Plugin, y.Plugin) })
	}
	step.Totals, step.NodeStatus = a.totals, a.own
	step.Triggers, a.triggers = a.triggers, nil
}

// trigger notes when what led to a change of a slice happened, before the change is applied.
func (p *Planner) trigger(c *model.Change) {
	if c.Kind != model.SliceKind || c.Slice == nil || c.Slice.Trigger == 0 {
		return // a deletion carries the time of the change before it
	}
	old := p.cluster.Slice(c.Name)
	if old != nil && (old.Trigger == c.Slice.Trigger || old.SameContent(c.Slice)) {
		return
	}
	p.account.triggers = append(p.account.triggers, Trigger{c.Slice.Trigger, c.Slice.Family})
}

// told works out what others are told of this node.
func (p *Planner) told() NodeStatus {
	node := p.cluster.Nodes[p.settings.Node]
	own := NodeStatus{Eligible: node != nil && !node.Leaving}
	for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
		some, all := false, false
		for _, r := range p.settings.NodePortPrefixes {
			if model.FamilyOf(r.Addr()) == f {
				some, all = true, all || r.Bits() == 0
			}
		}
		switch {
		case some && !all:
			own.HealthAddrs = append(own.HealthAddrs, ofFamily(p.builder.plan.Global.NodePortAddrs, f)...)
		case f == model.IPv4:
			own.HealthAddrs = append(own.HealthAddrs, netip.IPv4Unspecified())
		default:
			own.HealthAddrs = append(own.HealthAddrs, netip.IPv6Unspecified())
		}
	}
	own.HealthAddrs = sortedAddrs(own.HealthAddrs)
	return own
}

// summarize counts a Service.
func summarize(svc *model.Service, decided []PortDecision, failing bool) summary {
	s := summary{counted: true, failing: failing}
	var local ByFamily[[]netip.Addr]
	for i := range decided {
		d := &decided[i]
		p := d.Port
		of := s.family.At(p.Family)
		countEndpoints(&of.endpoints, d)
		if p.UsesLocal && p.HasEligible && !slices.ContainsFunc(p.Endpoints, func(e service.Endpoint) bool { return e.InLocal }) {
			of.noLocalInternal = of.noLocalInternal || svc.InternalLocal
			of.noLocalExternal = of.noLocalExternal || svc.ExternalLocal && service.IsExternal(svc, &p.Spec, p.Family)
		}
		if p.UsesCluster {
			s.decision(&d.Cluster)
		}
		if p.UsesLocal {
			s.decision(&d.Local)
		}
		for j := range p.Endpoints {
			if e := &p.Endpoints[j]; svc.HealthCheckNodePort != 0 && e.Local && e.Ready {
				at := local.At(p.Family)
				*at = append(*at, e.Addr.Addr())
			}
		}
	}
	if svc.HealthCheckNodePort != 0 {
		s.health = HealthCheck{Service: svc.Name, Port: svc.HealthCheckNodePort}
		for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
			*s.health.Serves.At(f) = hasFamily(svc, f)
			*s.health.Local.At(f) = len(sortedAddrs(*local.At(f)))
		}
	}
	return s
}

// countEndpoints counts the endpoints that are endpoints of either pool of a Service port.
func countEndpoints(endpoints *[plan.Draining + 1]int, d *PortDecision) {
	for i := range d.Port.Endpoints {
		e := &d.Port.Endpoints[i]
		leaving := e.Terminating && !e.Ready
		var active, draining bool
		in := func(used, may bool, got *policy.Decision) {
			if !used || !may {
				return
			}
			keep := leaving || got.KeepDraining != nil && got.KeepDraining[i]
			draining = draining || keep
			active = active || !keep && got.Weights[i] > 0
		}
		in(d.Port.UsesCluster, true, &d.Cluster)
		in(d.Port.UsesLocal, e.Local, &d.Local)
		switch {
		case active:
			endpoints[plan.Active]++
		case draining:
			endpoints[plan.Draining]++
		}
	}
}

// decision counts one decision of a Service.
func (s *summary) decision(d *policy.Decision) {
	if d.Policy == "" {
		return
	}
	s.policy.Policy = d.Policy
	s.policy.Decisions[d.Origin]++
	if d.Observed != nil {
		observed, differ := differs(d.Weights, d.Observed)
		s.policy.Observed += observed
		s.policy.Differing += differ
	}
	if d.Err == nil || errors.Is(d.Err, policy.ErrPending) || len(d.Steps) == 0 {
		return
	}
	plugin := d.Steps[len(d.Steps)-1].Plugin // a chain ends with the one that fails
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

// differs compares two weightings by the shares that they give: how many endpoints either uses, and how many of them
// get shares that are more than 1 % of the larger one apart.
func differs(a, b []uint16) (used, differ int) {
	var sumA, sumB uint64
	for i := range a {
		sumA, sumB = sumA+uint64(a[i]), sumB+uint64(b[i])
	}
	for i := range a {
		if a[i] == 0 && b[i] == 0 {
			continue
		}
		used++
		x, y := uint64(a[i])*sumB, uint64(b[i])*sumA // shares, over sumA·sumB
		if more, less := max(x, y), min(x, y); (more-less)*100 > more {
			differ++
		}
	}
	return used, differ
}
