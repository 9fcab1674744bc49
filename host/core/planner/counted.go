package planner

import (
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// countedService is what is counted of a Service's connections.
type countedService struct {
	needs     uint32 // of its policy and the shadow of it: abi.NeedOutcomes, abi.NeedConnections
	enforced  uint32 // those of the policy
	all       bool   // Settings.CountAll, or a guard
	outcomes  bool   // the plan asks for outcomes
	endpoints []model.EndpointKey
}

// any reports whether anything is counted.
func (c *countedService) any() bool { return c.needs != 0 || c.all }

// add adds the endpoints of a port, if anything is counted.
func (c *countedService) add(p *service.Port) {
	if !c.any() {
		return
	}
	c.endpoints = slices.Grow(c.endpoints, len(p.Endpoints))
	for i := range p.Endpoints {
		c.endpoints = append(c.endpoints, model.EndpointKey{Addr: p.Endpoints[i].Addr, Protocol: p.Name.Protocol})
	}
}

// countedEndpoints indexes the endpoints of the Services of which something is counted.
type countedEndpoints struct {
	services    map[model.EndpointKey][]model.Name
	outcomes    int                 // Services that the plan counts outcomes of
	connections map[model.Name]bool // Services whose policy needs open connections
}

func newCountedEndpoints() countedEndpoints {
	return countedEndpoints{services: map[model.EndpointKey][]model.Name{}, connections: map[model.Name]bool{}}
}

// setCounted replaces what is counted of a Service.
func (p *Planner) setCounted(name model.Name, s *serviceState, c countedService) {
	k, old := &p.counted, &s.counted
	slices.SortFunc(c.endpoints, model.EndpointKey.Compare)
	c.endpoints = slices.Compact(c.endpoints)
	if !slices.Equal(old.endpoints, c.endpoints) {
		for _, e := range old.endpoints {
			k.remove(e, name)
		}
		for _, e := range c.endpoints {
			k.services[e] = append(k.services[e], name)
		}
	}
	k.outcomes += oneIf(c.outcomes) - oneIf(old.outcomes)
	if c.needs&abi.NeedConnections != 0 {
		k.connections[name] = true
	} else {
		delete(k.connections, name)
	}
	if c.outcomes && s.connections == nil {
		s.connections = &Connections{}
		p.totalsOf = append(p.totalsOf, name)
	}
	*old = c
}

func (k *countedEndpoints) remove(e model.EndpointKey, name model.Name) {
	rest := slices.DeleteFunc(k.services[e], func(n model.Name) bool { return n == name })
	if len(rest) == 0 {
		delete(k.services, e)
		return
	}
	k.services[e] = rest
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CountsOutcomes reports whether the plan has frontends with Outcomes.
func (p *Planner) CountsOutcomes() bool { return p.counted.outcomes > 0 }

// AddOutcomes adds the changes of a reading to the totals of the endpoints' Services and of their policies. Services with a new failure
// whose policy needs outcomes are planned again by the next Plan.
//
// The reading was taken now and covers the time since the one before: length is 0 if there was none. Its cost follows the changes.
func (p *Planner) AddOutcomes(now time.Time, length time.Duration, changes []outcomes.Change) {
	settled := now.Add(-length - settleTime)
	for i := range changes {
		c := &changes[i]
		p.mark++
		for _, name := range p.counted.services[c.Key] {
			s := p.services[name]
			if s.connections != nil {
				s.connections.add(c)
				p.totalsOf = append(p.totalsOf, name)
			}
			if k := s.inForce; k != nil && k.mark != p.mark { // once for all Services of a policy with the endpoint
				k.mark, p.policies.changed = p.mark, true
				k.add(c)
			}
			for _, g := range s.guards {
				if g.mark != p.mark && g.counts(s, settled) {
					g.mark = p.mark
					g.add(c)
				}
			}
			switch {
			case !c.Failed:
			case s.counted.enforced&abi.NeedOutcomes != 0:
				p.schedule(s, due)
			case s.counted.needs&abi.NeedOutcomes != 0:
				p.schedule(s, shadowDue)
			}
		}
	}
	p.endReading(now, length)
}

// reportConnections adds the totals that have changed to result.
func (p *Planner) reportConnections(result *Result) {
	slices.SortFunc(p.totalsOf, model.Name.Compare)
	for _, name := range slices.Compact(p.totalsOf) {
		r := ServiceConnections{Service: name, Gone: true}
		if s := p.services[name]; s != nil && s.connections != nil {
			r.Connections, r.Gone = *s.connections, false
		}
		result.Connections = append(result.Connections, r)
	}
	p.totalsOf = nil
}

// NeedsConnections reports whether the policy of a Service needs open connections.
func (p *Planner) NeedsConnections() bool { return len(p.counted.connections) > 0 }

// ConnectionsToCount returns the endpoints of each Service whose policy needs open connections. They do not change.
func (p *Planner) ConnectionsToCount() [][]model.EndpointKey {
	out := make([][]model.EndpointKey, 0, len(p.counted.connections))
	for name := range p.counted.connections {
		out = append(out, p.services[name].counted.endpoints)
	}
	return out
}

// FrontendsToCount returns the frontends of these Services.
func (p *Planner) FrontendsToCount() (frontends []plan.Key) {
	for name := range p.counted.connections {
		if c := p.builder.services[name]; c != nil {
			for _, f := range c.frontends {
				if p.builder.plan.Frontends[f.Key] == f {
					frontends = append(frontends, f.Key)
				}
			}
		}
	}
	return frontends
}
