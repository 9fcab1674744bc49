package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// counters returns the counters of outcomes, none if the backend has none.
func (s *session) counters() map[model.EndpointKey]backend.OutcomeCounters {
	s.Helper()
	c, ok := s.backend.(backend.OutcomeCounter)
	if !ok {
		if s.backend.Caps().Outcomes {
			s.Fatalf("%s: the backend declares Outcomes and is no OutcomeCounter", s.step)
		}
		return nil
	}
	got, err := c.ReadOutcomes(context.Background())
	if err != nil {
		s.Fatalf("%s: read outcomes: %v", s.step, err)
	}
	return got
}

// counted checks that the endpoints of frontends with Outcomes have counters, and no others. Whether those of weight 0
// have depends on whether the backend represents them.
func (s *session) counted(p *plan.Plan) map[model.EndpointKey]backend.OutcomeCounters {
	s.Helper()
	normalized := plan.Normalize(p, s.backend.Caps())
	got := s.counters()
	extra := maps.Clone(got)
	for k, f := range p.Frontends {
		if n := normalized.Frontends[k]; n == nil || !n.Outcomes {
			continue
		}
		for m := range f.AllEndpoints() {
			delete(extra, model.EndpointKey{Addr: m.Addr, Protocol: k.Protocol})
		}
		for m := range normalized.Frontends[k].AllEndpoints() {
			if _, ok := got[model.EndpointKey{Addr: m.Addr, Protocol: k.Protocol}]; !ok && m.Weight > 0 {
				s.Fatalf("%s: %s of %s has no counters", s.step, m.Addr, k)
			}
		}
	}
	for e, c := range extra {
		s.Fatalf("%s: %s is in no frontend with Outcomes and has counters %+v", s.step, e, c)
	}
	return got
}

// outcomeEndpoints checks which endpoints have counters, through random changes and restarts.
func (s *session) outcomeEndpoints() {
	seen := 0
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		prev := g.Plan()
		s.apply(prev, nil)
		for step := range 6 {
			s.step = fmt.Sprintf("%s step %d", seed, step)
			seen += len(s.counted(prev))
			next := g.Next(prev)
			s.apply(next, plan.Diff(prev, next))
			s.counted(next)
			if step%2 == 1 {
				s.step += " after a restart"
				s.restart()
				s.expectNoWrites(next, nil)
				s.counted(next)
			}
			prev = next
		}
		s.step = seed + " without frontends"
		none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		s.apply(none, plan.Diff(prev, none))
		s.counted(none)
	})
	if (seen > 0) != s.backend.Caps().Outcomes {
		s.Errorf("%d endpoints had counters, and Caps().Outcomes is %v", seen, s.backend.Caps().Outcomes)
	}
}

// outcomeConnections compares the counters with the connections that were made.
func (s *session) outcomeConnections() {
	const connections = 40
	w := s.fixture.Traffic
	prev := empty()
	for _, family := range s.families() {
		to, c, endpoints := s.oneService(family)
		c.Timeout = answerTimeout
		for _, proto := range w.Protocols {
			key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: proto}
			made := map[netip.AddrPort]uint64{}
			for _, step := range []struct {
				name    string
				weights []uint16
				off     bool
			}{{"at first", []uint16{1, 2, 5, 0}, false}, {"with other weights", []uint16{3, 1, 1, 1}, false}, {"not counted", []uint16{1, 1, 1, 1}, true}} {
				s.step = fmt.Sprintf("%s %s %s", family, proto, step.name)
				next := service(w.Global, key, endpoints, step.weights)
				next.Frontends[key].Outcomes = !step.off
				s.apply(next, plan.Diff(prev, next))
				prev = next
				for range connections {
					seen := s.connect(c, to, proto)
					seen.Close()
					made[seen.Server]++
				}
				got := s.counted(next)
				for i, m := range endpoints {
					e := model.EndpointKey{Addr: m, Protocol: proto}
					if n, ok := got[e]; ok && step.weights[i] > 0 && (n.Attempts != made[m] || n.Answered != made[m] || n.Refused != 0) {
						s.Fatalf("%s: %s has counters %+v after %d connections", s.step, e, n, made[m])
					}
				}
			}
		}
	}
}
