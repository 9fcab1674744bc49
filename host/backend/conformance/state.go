package conformance

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

func empty() *plan.Plan { return &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}} }

func (s *session) emptyPlan() {
	s.step = "before the first apply"
	if p := s.read(); !p.Equal(empty()) {
		s.Fatalf("%s: read:\n%s", s.step, plan.Format(p))
	}
}

// readback applies random sequences of plans, with and without deltas, and finally an empty plan.
func (s *session) readback() {
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		prev := s.read()
		for step := range 12 {
			next := g.Next(prev)
			if step == 0 {
				next = g.Plan()
			}
			var d *plan.Delta
			path := "full sync"
			if step%3 > 0 {
				d, path = plan.Diff(prev, next), "delta"
			}
			s.step = fmt.Sprintf("%s step %d by %s", seed, step, path)
			s.apply(next, d)
			prev = next
		}
		s.step = seed + " to no frontends"
		none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		s.apply(none, plan.Diff(prev, none))
	})
}

func (s *session) idempotence() {
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		prev := g.Plan()
		s.apply(prev, nil)
		for step := range 5 {
			next := g.Next(prev)
			d := plan.Diff(prev, next)
			s.step = fmt.Sprintf("%s step %d", seed, step)
			s.apply(next, d)
			s.step += ", full sync again"
			s.expectNoWrites(next, nil)
			s.step = fmt.Sprintf("%s step %d, an empty delta", seed, step)
			s.expectNoWrites(next, &plan.Delta{})
			s.step = fmt.Sprintf("%s step %d, the same delta again", seed, step)
			s.expectNoWrites(next, d)
			prev = next
		}
	})
}

func (s *session) restarts() {
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		prev := g.Plan()
		s.apply(prev, nil)
		for step := range 3 {
			s.step = fmt.Sprintf("%s step %d after a restart", seed, step)
			s.restart()
			s.expectState(prev)
			s.expectNoWrites(prev, nil)
			next := g.Next(prev)
			s.step += ", the next plan"
			if step == 1 { // the cluster changed while sluice was down
				s.restart()
			}
			s.apply(next, nil)
			after := g.Next(next)
			s.apply(after, plan.Diff(next, after))
			prev = after
		}
		// A crash between an Apply and the requeued one.
		next := g.Next(g.Next(prev))
		s.step = seed + " killed before the requeued Apply"
		if _, err := s.program(next, plan.Diff(prev, next)); err != nil {
			s.Fatalf("%s: %v", s.step, err)
		}
		s.restart()
		s.apply(next, nil)
		s.expectNoWrites(next, nil)
	})
}

// largePlans tests limits of messages and buffers: a pool with more endpoints than fit into one netlink message, weights that
// need many slots, and several hundred frontends in one Apply.
func (s *session) largePlans() {
	s.step = "a big plan"
	p := testgen.NewPlans(s.seed, testgen.PlanOptions{}).Plan()
	for family, base := range map[model.Family]netip.Addr{model.IPv4: netip.MustParseAddr("10.100.0.0"), model.IPv6: netip.MustParseAddr("fd00:100::")} {
		addr := base
		for i := range 200 {
			addr = addr.Next()
			size := 10
			if i == 0 {
				size = 2000
			}
			f := &plan.Frontend{
				Key: plan.Key{Addr: addr, Port: 80, Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "big", Name: fmt.Sprintf("svc-%d", i)},
					Port: "http", Protocol: model.TCP},
			}
			addr := netip.MustParseAddr("10.200.0.0")
			if family == model.IPv6 {
				addr = netip.MustParseAddr("fd00:200::")
			}
			for j := range size {
				addr = addr.Next()
				weight := uint16(1)
				if i == 1 {
					weight = uint16(1 + 97*j) // many slots
				}
				f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Weight: weight})
			}
			p.Frontends[f.Key] = f
		}
	}
	s.apply(p, nil)
	s.expectNoWrites(p, nil)
	s.step = "a big plan after a restart"
	s.restart()
	s.expectNoWrites(p, nil)
	s.step = "a big plan to no frontends"
	none := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	s.apply(none, plan.Diff(p, none))
}

// incremental checks that replacing one endpoint costs no more in a plan of 400 frontends than in a plan of one.
func (s *session) incremental() {
	cost := func(frontends int) int {
		s.step = fmt.Sprintf("replace one of two endpoints, %d frontends", frontends)
		p := &plan.Plan{Global: plan.Global{MasqueradeMark: 0x4000}, Frontends: map[plan.Key]*plan.Frontend{}}
		addr := netip.MustParseAddr("10.100.0.0")
		var f plan.Frontend
		for i := range frontends {
			addr = addr.Next()
			f = plan.Frontend{
				Key:   plan.Key{Addr: addr, Port: 80, Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "many", Name: fmt.Sprintf("svc-%d", i)}, Protocol: model.TCP},
				Pool: plan.Pool{Endpoints: []plan.Endpoint{
					{Addr: netip.MustParseAddrPort("10.200.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.200.0.2:80"), Weight: 1}}},
			}
			p.Frontends[f.Key] = &plan.Frontend{}
			*p.Frontends[f.Key] = f
		}
		s.apply(p, nil)
		next := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		next.Apply(plan.Diff(next, p))
		f.Pool.Endpoints = []plan.Endpoint{f.Pool.Endpoints[0], {Addr: netip.MustParseAddrPort("10.200.0.3:80"), Weight: 1}}
		next.Frontends[f.Key] = &f
		r := s.apply(next, plan.Diff(p, next))
		s.Logf("%s: %d messages, %d elements", s.step, r.Messages, r.Elements)
		if r.Elements == 0 || r.Messages == 0 {
			s.Fatalf("%s: a change that writes nothing: %+v", s.step, r)
		}
		return r.Messages + r.Elements
	}
	few, many := cost(1), cost(400)
	if many > few {
		s.Fatalf("replacing one endpoint costs %d messages and elements in a plan of 400 frontends, %d in a plan of one", many, few)
	}
}

func (s *session) cleanup() {
	s.rounds(3, func(g *testgen.Plans) {
		seed := s.step
		p := g.Plan()
		s.apply(p, nil)
		for _, again := range []string{"", " again"} {
			s.step = seed + " after cleanup" + again
			s.close()
			if err := s.fixture.Cleanup(context.Background()); err != nil {
				s.Fatalf("%s: %v", s.step, err)
			}
			if s.fixture.Leftovers != nil {
				left, err := s.fixture.Leftovers()
				if err != nil || len(left) > 0 {
					s.Fatalf("%s: left behind: %q, %v", s.step, left, err)
				}
			}
			s.open()
			if got := s.read(); !got.Equal(empty()) {
				s.Fatalf("%s: read:\n%s", s.step, plan.Format(got))
			}
		}
		s.step = seed + " applied again"
		s.apply(g.Next(p), nil)
	})
}

func (s *session) foreign() {
	check, err := s.fixture.AddForeign()
	if err != nil {
		s.Fatalf("add foreign state: %v", err)
	}
	verify := func() {
		s.Helper()
		if err := check(); err != nil {
			s.Fatalf("%s: foreign state was modified: %v", s.step, err)
		}
	}
	s.step = "before the first apply"
	verify()
	s.rounds(3, func(g *testgen.Plans) {
		p := g.Plan()
		s.apply(p, nil)
		verify()
		next := g.Next(p)
		s.apply(next, plan.Diff(p, next))
		verify()
		s.step += " after a restart"
		s.restart()
		s.expectNoWrites(next, nil)
		verify()
		s.step += " and cleanup"
		s.close()
		if err := s.fixture.Cleanup(context.Background()); err != nil {
			s.Fatalf("%s: %v", s.step, err)
		}
		verify()
		s.open()
	})
}

func (s *session) drift() {
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		p := g.Plan()
		s.apply(p, nil)
		programmed := s.read()
		for i, k := range programmed.Keys() {
			if i == 4 {
				break
			}
			s.step = fmt.Sprintf("%s drift of %s", seed, k)
			if err := s.fixture.Corrupt(k); err != nil {
				s.Fatalf("%s: %v", s.step, err)
			}
			// The damage may not be representable as a plan: an error is fine, too.
			if got, err := s.backend.Read(context.Background()); err == nil && got.Equal(programmed) {
				s.Fatalf("%s: Read does not detect it", s.step)
			}
			s.apply(p, nil)
			s.expectNoWrites(p, nil)
		}
	})
}
