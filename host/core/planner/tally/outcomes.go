package tally

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Wanted is what is counted of a Service's connections.
type Wanted struct {
	Needs     uint32 // of its policy and the shadow of it: abi.NeedOutcomes, abi.NeedConnections
	Enforced  uint32 // those of the policy
	All       bool   // outcomes are counted whatever the policy needs
	Outcomes  bool   // the plan asks for outcomes
	endpoints []model.EndpointKey
}

// Add adds the endpoints of a port, if anything is counted.
func (w *Wanted) Add(p *eligibility.Port) {
	if w.Needs == 0 && !w.All {
		return
	}
	w.endpoints = slices.Grow(w.endpoints, len(p.Endpoints))
	for i := range p.Endpoints {
		w.endpoints = append(w.endpoints, model.EndpointKey{Addr: p.Endpoints[i].Addr, Protocol: p.Name.Protocol})
	}
}

// Counted is a Service with what is counted of its connections.
type Counted struct {
	Wanted
	connections *Connections // nil: never counted
	policy      *PolicyCount // of the policy that decides; nil: its connections are not counted
	policySince time.Time
}

// DecidedBy returns the policy that decides about the Service, "" for the default rules, if its connections are counted and it
// has decided since a time.
func (c *Counted) DecidedBy(since time.Time) (policy string, ok bool) {
	if c.policy == nil || c.policySince.After(since) {
		return "", false
	}
	return c.policy.Policy, true
}

// Outcomes counts connections by outcome: of Services, and of policies. It indexes the endpoints of the Services of which
// something is counted: each Service is at all of Wanted.endpoints, and nowhere else.
type Outcomes struct {
	services    map[model.EndpointKey][]model.Name
	counting    int                     // Services that the plan counts outcomes of
	connections map[model.Name]*Counted // Services whose policy needs open connections
	policies    Policies
	changed     []changedService // since Report, with repetitions
	mark        uint64           // identifies the change that is added
}

type changedService struct {
	name        model.Name
	connections *Connections // nil: the Service is gone
}

// NewOutcomes returns the counts of no Services.
func NewOutcomes() Outcomes {
	return Outcomes{services: map[model.EndpointKey][]model.Name{}, connections: map[model.Name]*Counted{}}
}

// Set replaces what is counted of a Service.
func (o *Outcomes) Set(name model.Name, s *Counted, w Wanted) {
	slices.SortFunc(w.endpoints, model.EndpointKey.Compare)
	w.endpoints = slices.Compact(w.endpoints)
	if !slices.Equal(s.endpoints, w.endpoints) {
		for _, e := range s.endpoints {
			o.remove(e, name)
		}
		for _, e := range w.endpoints {
			o.services[e] = append(o.services[e], name)
		}
	}
	switch {
	case w.Outcomes && !s.Outcomes:
		o.counting++
	case s.Outcomes && !w.Outcomes:
		o.counting--
	}
	if w.Needs&abi.NeedConnections != 0 {
		o.connections[name] = s
	} else {
		delete(o.connections, name)
	}
	if w.Outcomes && s.connections == nil {
		s.connections = &Connections{}
		o.changed = append(o.changed, changedService{name, s.connections})
	}
	s.Wanted = w
}

// SetPolicy records which policy decides about a Service from now on. Its connections are counted if the Service's outcomes are.
func (o *Outcomes) SetPolicy(s *Counted, policy, revision string, now time.Time) {
	var c *PolicyCount
	if s.Outcomes {
		if c = s.policy; c == nil || c.Policy != policy || c.Revision != revision {
			c = o.policies.Of(policy, revision)
		}
	}
	if c != s.policy {
		o.policies.Replace(s.policy, c)
		s.policy, s.policySince = c, now
	}
}

// Delete deletes a Service.
func (o *Outcomes) Delete(name model.Name, s *Counted) {
	o.Set(name, s, Wanted{})
	if s.connections != nil {
		o.changed = append(o.changed, changedService{name: name})
	}
	o.policies.Replace(s.policy, nil)
	*s = Counted{}
}

func (o *Outcomes) remove(e model.EndpointKey, name model.Name) {
	rest := slices.DeleteFunc(o.services[e], func(n model.Name) bool { return n == name })
	if len(rest) == 0 {
		delete(o.services, e)
		return
	}
	o.services[e] = rest
}

// ServicesOf returns the Services to Add a change to, and what identifies the change.
func (o *Outcomes) ServicesOf(c *outcomes.Change) (names []model.Name, mark uint64) {
	o.mark++
	return o.services[c.Key], o.mark
}

// Services returns the Services by counted endpoint. It is read-only.
func (o *Outcomes) Services() map[model.EndpointKey][]model.Name { return o.services }

// Add adds a change to one of ServicesOf, and to its policy.
func (o *Outcomes) Add(name model.Name, s *Counted, c *outcomes.Change) {
	if s.connections != nil {
		s.connections.Add(c)
		o.changed = append(o.changed, changedService{name, s.connections})
	}
	if s.policy != nil {
		o.policies.add(s.policy, o.mark, c)
	}
}

// Counting reports whether the plan counts outcomes.
func (o *Outcomes) Counting() bool { return o.counting > 0 }

// NeedConnections returns the Services whose policy needs open connections. It is read-only.
func (o *Outcomes) NeedConnections() map[model.Name]*Counted { return o.connections }

// Endpoints returns the endpoints whose connections are counted. They do not change.
func (c *Counted) Endpoints() []model.EndpointKey { return c.endpoints }

// Report returns the totals of Services that have changed since the last Report, sorted, and those of policies, see
// Policies.Report.
func (o *Outcomes) Report() (services []ServiceConnections, policies []PolicyConnections) {
	slices.SortStableFunc(o.changed, func(a, b changedService) int { return a.name.Compare(b.name) })
	for i, c := range o.changed {
		switch {
		case i+1 < len(o.changed) && o.changed[i+1].name == c.name: // the last one is how it is now
		case c.connections == nil:
			services = append(services, ServiceConnections{Service: c.name, Gone: true})
		default:
			services = append(services, ServiceConnections{Service: c.name, Connections: *c.connections})
		}
	}
	o.changed = nil
	return services, o.policies.Report()
}

// ServiceConnections are the connections to a Service's endpoints since their outcomes are counted. The numbers never decrease.
type ServiceConnections struct {
	Service model.Name
	Gone    bool // the Service is deleted
	Connections
}

// Connections counts connections by outcome. One that is answered after outcomes.Grace counts as unanswered and as answered.
type Connections struct{ Answered, Refused, Unanswered uint64 }

// Add adds a change.
func (n *Connections) Add(c *outcomes.Change) {
	n.Answered += c.Answered
	n.Refused += c.Refused
	n.Unanswered += c.Unanswered
}
