package conformance

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/lab/plangen"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

func empty() *plan.Plan { return &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}} }

func (s *session) emptyReads() {
	s.where = "before the first apply"
	if p := s.read(); !p.Equal(empty()) {
		s.Fatalf("%s: read:\n%s", s.where, plan.Format(p))
	}
}

// readsBack follows random sequences of plans, by deltas and without, and back to nothing.
func (s *session) readsBack() {
	s.rounds(6, func(g *plangen.Gen) {
		seed := s.where
		prev := s.read()
		for step := range 12 {
			next := g.Next(prev)
			if step == 0 {
				next = g.Plan()
			}
			var d *plan.Delta
			path := "everything"
			if step%3 > 0 {
				d, path = plan.Diff(prev, next), "a delta"
			}
			s.where = fmt.Sprintf("%s step %d by %s", seed, step, path)
			s.apply(next, d)
			prev = next
		}
		s.where = seed + " to no frontends"
		none := &plan.Plan{Global: prev.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		s.apply(none, plan.Diff(prev, none))
	})
}

func (s *session) appliesOnce() {
	s.rounds(6, func(g *plangen.Gen) {
		seed := s.where
		prev := g.Plan()
		s.apply(prev, nil)
		for step := range 5 {
			next := g.Next(prev)
			d := plan.Diff(prev, next)
			s.where = fmt.Sprintf("%s step %d", seed, step)
			s.apply(next, d)
			s.where += ", everything again"
			s.quiet(next, nil)
			s.where = fmt.Sprintf("%s step %d, an empty delta", seed, step)
			s.quiet(next, &plan.Delta{})
			s.where = fmt.Sprintf("%s step %d, the same delta again", seed, step)
			s.quiet(next, d)
			prev = next
		}
	})
}

func (s *session) restarts() {
	s.rounds(6, func(g *plangen.Gen) {
		seed := s.where
		prev := g.Plan()
		s.apply(prev, nil)
		for step := range 3 {
			s.where = fmt.Sprintf("%s step %d after a restart", seed, step)
			s.restart()
			s.holds(prev)
			s.quiet(prev, nil)
			next := g.Next(prev)
			s.where += ", the next plan"
			if step == 1 { // the cluster changed while sluice was away
				s.restart()
			}
			s.apply(next, nil)
			after := g.Next(next)
			s.apply(after, plan.Diff(next, after))
			prev = after
		}
		// A crash between an Apply and the one that it asks for.
		next := g.Next(g.Next(prev))
		s.where = seed + " killed before it settled"
		if _, err := s.backend.Apply(context.Background(), next, plan.Diff(prev, next)); err != nil {
			s.Fatalf("%s: %v", s.where, err)
		}
		s.restart()
		s.apply(next, nil)
		s.quiet(next, nil)
	})
}

// big is about limits of messages and buffers: a pool of more members than one netlink message holds, weights that
// need many slots, and some hundred frontends in one Apply.
func (s *session) big() {
	s.where = "a big plan"
	p := plangen.New(s.seed, plangen.Options{}).Plan()
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
			member := netip.MustParseAddr("10.200.0.0")
			if family == model.IPv6 {
				member = netip.MustParseAddr("fd00:200::")
			}
			for j := range size {
				member = member.Next()
				weight := uint16(1)
				if i == 1 {
					weight = uint16(1 + 97*j) // many slots
				}
				f.Pool.Members = append(f.Pool.Members, plan.Member{Addr: netip.AddrPortFrom(member, 8080), Weight: weight})
			}
			p.Frontends[f.Key] = f
		}
	}
	s.apply(p, nil)
	s.quiet(p, nil)
	s.where = "a big plan after a restart"
	s.restart()
	s.quiet(p, nil)
	s.where = "a big plan to no frontends"
	none := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
	s.apply(none, plan.Diff(p, none))
}

// incremental: one endpoint replaced sends no more in a plan of 400 frontends than in a plan of one.
func (s *session) incremental() {
	cost := func(frontends int) int {
		s.where = fmt.Sprintf("replace one of two endpoints, %d frontends", frontends)
		p := &plan.Plan{Global: plan.Global{MasqueradeMark: 0x4000}, Frontends: map[plan.Key]*plan.Frontend{}}
		addr := netip.MustParseAddr("10.100.0.0")
		var f plan.Frontend
		for i := range frontends {
			addr = addr.Next()
			f = plan.Frontend{
				Key:   plan.Key{Addr: addr, Port: 80, Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "many", Name: fmt.Sprintf("svc-%d", i)}, Protocol: model.TCP},
				Pool: plan.Pool{Members: []plan.Member{
					{Addr: netip.MustParseAddrPort("10.200.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.200.0.2:80"), Weight: 1}}},
			}
			p.Frontends[f.Key] = &plan.Frontend{}
			*p.Frontends[f.Key] = f
		}
		s.apply(p, nil)
		next := &plan.Plan{Global: p.Global, Frontends: map[plan.Key]*plan.Frontend{}}
		next.Apply(plan.Diff(next, p))
		f.Pool.Members = []plan.Member{f.Pool.Members[0], {Addr: netip.MustParseAddrPort("10.200.0.3:80"), Weight: 1}}
		next.Frontends[f.Key] = &f
		r := s.apply(next, plan.Diff(p, next))
		s.Logf("%s: %d messages, %d elements", s.where, r.Messages, r.Elements)
		if r.Elements == 0 || r.Messages == 0 {
			s.Fatalf("%s: a change that sends nothing: %+v", s.where, r)
		}
		return r.Messages + r.Elements
	}
	few, many := cost(1), cost(400)
	if many > few {
		s.Fatalf("replacing one endpoint costs %d messages and elements in a plan of 400 frontends, %d in a plan of one", many, few)
	}
}

func (s *session) cleansUp() {
	s.rounds(3, func(g *plangen.Gen) {
		seed := s.where
		p := g.Plan()
		s.apply(p, nil)
		for _, again := range []string{"", " again"} {
			s.where = seed + " after cleanup" + again
			s.close()
			if err := s.sub.Cleanup(context.Background()); err != nil {
				s.Fatalf("%s: %v", s.where, err)
			}
			if s.sub.Traces != nil {
				left, err := s.sub.Traces()
				if err != nil || len(left) > 0 {
					s.Fatalf("%s: left behind: %q, %v", s.where, left, err)
				}
			}
			s.open()
			if got := s.read(); !got.Equal(empty()) {
				s.Fatalf("%s: read:\n%s", s.where, plan.Format(got))
			}
		}
		s.where = seed + " a new beginning"
		s.apply(g.Next(p), nil)
	})
}

func (s *session) foreign() {
	check, err := s.sub.Foreign()
	if err != nil {
		s.Fatalf("put foreign things: %v", err)
	}
	look := func() {
		s.Helper()
		if err := check(); err != nil {
			s.Fatalf("%s: what is not sluice's changed: %v", s.where, err)
		}
	}
	s.where = "before the first apply"
	look()
	s.rounds(3, func(g *plangen.Gen) {
		p := g.Plan()
		s.apply(p, nil)
		look()
		next := g.Next(p)
		s.apply(next, plan.Diff(p, next))
		look()
		s.where += " after a restart"
		s.restart()
		s.quiet(next, nil)
		look()
		s.where += " and cleanup"
		s.close()
		if err := s.sub.Cleanup(context.Background()); err != nil {
			s.Fatalf("%s: %v", s.where, err)
		}
		look()
		s.open()
	})
}

func (s *session) drift() {
	s.rounds(4, func(g *plangen.Gen) {
		seed := s.where
		p := g.Plan()
		s.apply(p, nil)
		held := s.read()
		for i, k := range held.Keys() {
			if i == 4 {
				break
			}
			s.where = fmt.Sprintf("%s drift of %s", seed, k)
			if err := s.sub.Drift(k); err != nil {
				s.Fatalf("%s: %v", s.where, err)
			}
			// What is damaged may be more than a plan can say: an error is as good an answer.
			if got, err := s.backend.Read(context.Background()); err == nil && got.Equal(held) {
				s.Fatalf("%s: Read does not see it", s.where)
			}
			s.apply(p, nil)
			s.quiet(p, nil)
		}
	})
}
