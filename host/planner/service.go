package planner

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// serviceState is the state of a planned Service.
type serviceState struct {
	decisions    *decisionCache               // the last decisions; nil without a policy
	err          error                        // of binding the policy or of its chain
	lastReported string                       // identifies the error that a Result has reported; "" for none
	requeueAt    int64                        // Unix milliseconds, 0: only on a change
	resetDone    map[netip.AddrPort]int64     // deadlines that a Result has reported in Resets
	serving      map[udpPort][]netip.AddrPort // sorted
	ports        []model.PortName
	summary      summary
}

// planService plans a Service and adds the consequences to result.
func (p *Planner) planService(name model.Name, now time.Time, result *Result) {
	svc, s := p.cluster.Services[name], p.services[name]
	if svc == nil {
		if s != nil {
			p.deleteService(name, s, result)
		}
		p.builder.Set(name, 0, nil)
		return
	}
	if s == nil {
		s = &serviceState{}
		p.services[name] = s
	}
	decided, requeueAt, err := p.decide(svc, s, now)
	pol, bindErr := p.settings.Policies.For(svc)
	s.report(name, bindErr, err, result)
	s.err, s.decisions = err, nil
	if pol != nil {
		s.decisions = packDecisions(decided)
	}
	sum := summarize(svc, decided, err != nil && !errors.Is(err, policy.ErrPending))
	if sum.health.Port == 0 {
		sum.health.Service = s.summary.health.Service // of the port that the Service had
	}
	p.counters.replace(&s.summary, &sum, result)
	s.summary = sum
	var want []*plan.Frontend
	for i := range decided {
		want = append(want, p.rules.frontends(svc, &decided[i])...)
	}
	p.builder.Set(name, svc.Created, want)
	s.staleUDPFlows(decided, want, result)
	p.setRequeue(name, s, earlier(requeueAt, s.dueResets(want, now.UnixMilli(), result)))
}

func (p *Planner) deleteService(name model.Name, s *serviceState, result *Result) {
	for _, port := range s.ports {
		p.evaluator.Delete(port)
	}
	p.counters.replace(&s.summary, &summary{health: HealthCheck{Service: s.summary.health.Service}}, result)
	delete(p.services, name)
}

// report adds an error to the result, once while it lasts. The text of a chain's error is not compared: it changes with, for
// instance, the time for which a plugin stays suspended.
func (s *serviceState) report(name model.Name, bindErr, err error, result *Result) {
	id := "chain"
	if bindErr != nil {
		id = bindErr.Error()
	}
	switch {
	case err == nil:
		s.lastReported = ""
	case s.lastReported != id && !errors.Is(err, policy.ErrPending):
		s.lastReported, result.Errors = id, append(result.Errors, &ServiceError{name, err})
	}
}

// decide evaluates all ports of a Service in all its families. It returns the earliest requeue time (Unix milliseconds or 0)
// and the first error.
func (p *Planner) decide(svc *model.Service, s *serviceState, now time.Time) ([]PortDecision, int64, error) {
	pol, err := p.settings.Policies.For(svc)
	var out []PortDecision
	used := 0
	nextPort := func() *service.Port {
		if used++; used > len(p.scratch) {
			p.scratch = append(p.scratch, &service.Port{})
		}
		return p.scratch[used-1]
	}
	var requeueAt int64
	var ports []model.PortName
	for i := range svc.Ports {
		for _, f := range [...]model.Family{model.IPv4, model.IPv6} {
			if !hasFamily(svc, f) {
				continue
			}
			port := service.SelectEndpointsInto(nextPort(), svc, &svc.Ports[i], f, p.cluster.Slices[svc.Name], p.nodeInfo)
			d := PortDecision{Port: port}
			in := policy.Input{Service: svc, Port: port, Node: p.nodeInfo.Node, Zone: p.nodeInfo.Zone, Zones: p.zones,
				NodesUnknown: p.nodesPartial}
			evaluate := func(pool uint8) policy.Decision {
				in.Pool = pool
				got, at := p.evaluator.Decide(pol, &in, now)
				if !at.IsZero() {
					requeueAt = earlier(requeueAt, at.UnixMilli())
				}
				if got.Err != nil && err == nil {
					err = got.Err
				}
				return got
			}
			if port.UsesCluster {
				d.Cluster = evaluate(abi.PoolCluster)
			}
			if port.UsesLocal {
				d.Local = evaluate(abi.PoolLocal)
			}
			out = append(out, d)
			if len(ports) == 0 || ports[len(ports)-1] != port.Name {
				ports = append(ports, port.Name)
			}
		}
	}
	for _, old := range s.ports {
		if !slices.Contains(ports, old) {
			p.evaluator.Delete(old)
		}
	}
	s.ports = ports
	return out, requeueAt, err
}

// dueResets adds the endpoints whose deadline has passed to the result, each once, and returns the next deadline.
func (s *serviceState) dueResets(frontends []*plan.Frontend, nowMS int64, result *Result) (next int64) {
	var done map[netip.AddrPort]int64
	for _, f := range frontends {
		pools := []*plan.Pool{&f.Pool}
		if f.Outside != nil {
			pools = append(pools, f.Outside)
		}
		for _, pool := range pools {
			for _, m := range pool.Endpoints {
				switch {
				case m.Deadline == 0:
				case m.Deadline > nowMS:
					next = earlier(next, m.Deadline)
				default:
					if s.resetDone[m.Addr] != m.Deadline {
						result.Resets = append(result.Resets, plan.Reset{Frontend: f.Key, Endpoint: m.Addr})
					}
					if done == nil {
						done = map[netip.AddrPort]int64{}
					}
					done[m.Addr] = m.Deadline
				}
			}
		}
	}
	s.resetDone = done
	return next
}

func hasFamily(svc *model.Service, f model.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f })
}

// earlier returns the earlier of two times, where 0 means none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
