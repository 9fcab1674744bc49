package planner

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
)

// Explanation explains the weights of a Service's endpoints.
type Explanation struct {
	Service   *model.Service
	Policy    *policy.Policy // nil: none
	Err       error          // of binding the policy or of its chain
	Decisions []PortDecision
	Frontends []*plan.Frontend   // in the plan
	Conflicts []plan.Degradation // frontends that the Service wants and another one has
}

// Explain returns the last decisions about a Service. It calls no plugin.
func (p *Planner) Explain(name model.Name) (*Explanation, error) {
	if !p.cluster.Synced {
		return nil, fmt.Errorf("Service %s: the cluster has not been read yet", name)
	}
	svc, s := p.cluster.Services[name], p.services[name]
	if svc == nil || s == nil {
		return nil, fmt.Errorf("Service %s: not found (or headless, ExternalName, or for another proxy)%s", name, p.otherNamespaces(name))
	}
	e := &Explanation{Service: svc, Err: s.err}
	e.Policy, _ = p.settings.Policies.For(svc)
	if s.decisions != nil {
		e.Decisions = s.decisions.unpack(p.cluster.Slices[name])
	} else if e.Policy == nil { // decisions of the default rules are not cached: they follow from the cluster state
		scratch := p.scratch
		p.scratch = nil // the result outlives this call
		e.Decisions, _, _ = p.decide(svc, s, time.Time{})
		p.scratch = scratch
	}
	for _, f := range p.builder.wanted[name].frontends {
		if p.builder.plan.Frontends[f.Key] == f {
			e.Frontends = append(e.Frontends, f)
		}
	}
	for _, d := range p.builder.Conflicts() {
		if d.Owner.Service == name {
			e.Conflicts = append(e.Conflicts, d)
		}
	}
	return e, nil
}

// otherNamespaces returns a hint that lists Services of the same name in other namespaces.
func (p *Planner) otherNamespaces(name model.Name) string {
	var found []string
	for _, n := range p.ServiceNames() {
		if n.Name == name.Name {
			found = append(found, n.String())
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "; there is " + strings.Join(found, ", ")
}
