package planner

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
)

// Explanation is why a Service's endpoints get what they get.
type Explanation struct {
	Service   *model.Service
	Policy    *policy.Policy // nil: none
	Err       error          // of the policy's binding or of its chain
	Decisions []PortDecision
	Frontends []*plan.Frontend   // in the plan
	Conflicts []plan.Degradation // frontends that it wants and another Service has
}

// Explain gives what was decided last for a Service. It calls no plugin.
func (p *Planner) Explain(name model.Name) (*Explanation, error) {
	if !p.cluster.Synced {
		return nil, fmt.Errorf("Service %s: the cluster has not been read yet", name)
	}
	svc, s := p.cluster.Services[name], p.services[name]
	if svc == nil || s == nil {
		return nil, fmt.Errorf("Service %s: not found (or headless, ExternalName, or for another proxy)%s", name, p.elsewhere(name))
	}
	e := &Explanation{Service: svc, Err: s.err}
	e.Policy, _ = p.settings.Policies.For(svc)
	if s.decided != nil {
		e.Decisions = s.decided.tell(p.cluster.Slices[name])
	} else if e.Policy == nil { // what the default rules say is not kept: it follows from the cluster
		kept := p.scratch
		p.scratch = nil // the answer outlives this call
		e.Decisions, _, _ = p.decide(svc, s, time.Time{})
		p.scratch = kept
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

// elsewhere names Services of the same name in other namespaces.
func (p *Planner) elsewhere(name model.Name) string {
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
