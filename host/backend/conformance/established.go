package conformance

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// established keeps connections open while their endpoint stays, loses its weight and is removed, and while the frontend
// is deleted and created again.
func (s *session) established() {
	for _, family := range s.families() {
		for _, proto := range s.fixture.Traffic.Protocols {
			if proto != model.UDP { // connectionless
				s.keepsConnections(family, proto)
			}
		}
	}
}

func (s *session) keepsConnections(family model.Family, proto model.Protocol) {
	w := s.fixture.Traffic
	to, c, endpoints := s.oneService(family)
	c.Timeout = answerTimeout
	key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: proto}
	prev := service(w.Global, key, endpoints, []uint16{1, 1, 1, 1})
	s.step = fmt.Sprintf("%s %s", family, proto)
	s.apply(prev, nil)
	var open []Outcome
	for range 20 {
		seen := s.connect(c, to, proto)
		if seen.Verdict != plan.Forward || seen.Reuse == nil {
			s.Fatalf("%s: no connection: %s", s.step, seen.Verdict)
		}
		defer seen.Close()
		open = append(open, seen)
	}
	alive := func(what string) {
		s.Helper()
		for i, seen := range open {
			if now, err := seen.Reuse(); err != nil || now != seen.Server {
				s.Fatalf("%s: connection %d to %s after %s: answered by %s, %v", s.step, i, seen.Server, what, now, err)
			}
		}
	}
	alive("no change")
	for _, step := range []struct {
		what    string
		weights []uint16
		gone    bool
	}{
		{what: "new weights", weights: []uint16{5, 1, 9, 2}},
		{what: "two endpoints at weight 0", weights: []uint16{0, 0, 1, 1}},
		{what: "no endpoint with weight", weights: []uint16{0, 0, 0, 0}},
		{what: "the frontend is deleted", gone: true},
		{what: "everything restored", weights: []uint16{1, 1, 1, 1}},
	} {
		next := &plan.Plan{Global: w.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		if !step.gone {
			next = service(w.Global, key, endpoints, step.weights)
		}
		s.apply(next, plan.Diff(prev, next))
		prev = next
		alive(step.what)
		if step.gone || step.weights[0] > 0 {
			continue
		}
		tries := 20
		if frontend := next.Frontends[key]; frontend.Pool.Verdict != plan.Forward {
			tries = 1
		}
		for range tries {
			seen := s.connect(c, to, proto)
			seen.Close()
			if seen.Verdict == plan.Forward && (seen.Server == endpoints[0] || seen.Server == endpoints[1]) {
				s.Fatalf("%s: with %s, a new connection went to %s", s.step, step.what, seen.Server)
			}
		}
	}
	s.restart()
	alive("a restart")
	s.expectNoWrites(prev, nil)
	alive("an apply after the restart")
	s.close()
	alive("close")
	s.open()
}
