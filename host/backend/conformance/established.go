package conformance

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// established keeps connections open while their member stays, loses its weight and leaves, and while the frontend
// goes and comes back.
func (s *session) established() {
	for _, family := range s.families() {
		for _, proto := range s.sub.Wire.Protocols {
			if proto != model.UDP { // which has none
				s.outlive(family, proto)
			}
		}
	}
}

func (s *session) outlive(family model.Family, proto model.Protocol) {
	w := s.sub.Wire
	to, c, members := s.oneService(family)
	key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: proto}
	prev := service(w.Global, key, members, []uint16{1, 1, 1, 1})
	s.where = fmt.Sprintf("%s %s", family, proto)
	s.apply(prev, nil)
	var open []Seen
	for range 20 {
		seen := s.connect(c, to, proto)
		if seen.Verdict != plan.Forward || seen.Again == nil {
			s.Fatalf("%s: no connection: %s", s.where, seen.Verdict)
		}
		defer seen.Close()
		open = append(open, seen)
	}
	alive := func(what string) {
		s.Helper()
		for i, seen := range open {
			if now, err := seen.Again(); err != nil || now != seen.Member {
				s.Fatalf("%s: connection %d to %s after %s: answered by %s, %v", s.where, i, seen.Member, what, now, err)
			}
		}
	}
	alive("nothing")
	for _, step := range []struct {
		what    string
		weights []uint16
		gone    bool
	}{
		{what: "new weights", weights: []uint16{5, 1, 9, 2}},
		{what: "two members at weight 0", weights: []uint16{0, 0, 1, 1}},
		{what: "no member with weight", weights: []uint16{0, 0, 0, 0}},
		{what: "the frontend is gone", gone: true},
		{what: "everything back", weights: []uint16{1, 1, 1, 1}},
	} {
		next := &plan.Plan{Global: w.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		if !step.gone {
			next = service(w.Global, key, members, step.weights)
		}
		s.apply(next, plan.Diff(prev, next))
		prev = next
		alive(step.what)
		if step.gone || step.weights[0] > 0 {
			continue
		}
		tries := 20
		if held := next.Frontends[key]; held.Pool.Verdict != plan.Forward {
			tries = 1
		}
		for range tries {
			seen := s.connect(c, to, proto)
			seen.Close()
			if seen.Verdict == plan.Forward && (seen.Member == members[0] || seen.Member == members[1]) {
				s.Fatalf("%s: with %s, a new connection went to %s", s.where, step.what, seen.Member)
			}
		}
	}
	s.restart()
	alive("a restart")
	s.quiet(prev, nil)
	alive("an apply after the restart")
	s.close()
	alive("close")
	s.open()
}
