package conformance

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// oversize programs a random plan together with frontends that exceed what a data plane may store: endpoints of a pool,
// lengths of names, source ranges.
func (s *session) oversize() {
	s.rounds(1, func(g *testgen.Plans) {
		p := g.Plan()
		s.apply(p, nil)
		next := &plan.Plan{Global: p.Global, Frontends: maps.Clone(p.Frontends)}
		large, affine, timeouts := 65_537, 30_000, 1000
		if testing.Short() { // virtual machines: minutes, and more memory than they have
			large, affine, timeouts = 1000, 500, 20
		}
		if next.Global.MasqueradeMark == 0 {
			next.Global.MasqueradeMark = 0x4000
		}
		for i, edit := range []func(*plan.Frontend){
			func(f *plan.Frontend) { f.Pool = pool(large) },
			func(f *plan.Frontend) { f.Pool, f.Affinity = pool(affine), time.Hour },
			func(f *plan.Frontend) { f.Owner.Service.Name = strings.Repeat("n", 253) },
			func(f *plan.Frontend) { f.Owner.Service.Namespace = strings.Repeat("n", 200) },
			func(f *plan.Frontend) { f.Owner.Port, f.Affinity = strings.Repeat("p", 250), time.Hour },
			func(f *plan.Frontend) {
				f.Owner.Service = model.Name{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63)}
				f.Owner.Port, f.Balance = strings.Repeat("p", 63), plan.SourceHash
			},
			func(f *plan.Frontend) {
				f.Kind = plan.LoadBalancer
				for n := range 5000 {
					f.SourceRanges = append(f.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(n >> 7), byte(n << 1), 0}), 24))
				}
			},
		} {
			f := &plan.Frontend{
				Key:   plan.Key{Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Port: 80, Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: fmt.Sprint("oversize", i)}, Protocol: model.TCP},
				Pool:  pool(2),
			}
			edit(f)
			next.Frontends[f.Key] = f
		}
		for i := range timeouts {
			f := &plan.Frontend{
				Key:   plan.Key{Addr: netip.MustParseAddr("198.51.101.1"), Port: uint16(1 + i), Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: fmt.Sprint("affine", i)}, Protocol: model.TCP},
				Pool:  pool(1), Affinity: time.Duration(1+86_399*i/timeouts) * time.Second,
			}
			next.Frontends[f.Key] = f
		}
		s.apply(next, plan.Diff(p, next))
		s.expectNoWrites(next, nil)
		s.restart()
		s.expectNoWrites(next, nil)
		s.apply(p, plan.Diff(next, p))
	})
}

// pool returns a pool of n endpoints.
func pool(n int) plan.Pool {
	var out plan.Pool
	for i := range n {
		out.Endpoints = append(out.Endpoints, plan.Endpoint{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i>>16), byte(i >> 8), byte(i)}), 80), Weight: 1,
		})
	}
	return out
}

// maxRejectedApplies bounds after how many Applies everything but a rejected frontend is programmed.
const maxRejectedApplies = 3

// rejected makes the data plane refuse a frontend, among changes of others.
func (s *session) rejected() {
	tested := 0
	s.rounds(6, func(g *testgen.Plans) {
		prev := g.Plan()
		s.apply(prev, nil)
		next := g.Next(g.Next(prev))
		changed, fitting := plan.Diff(prev, next), plan.Normalize(next, s.backend.Caps())
		i := slices.IndexFunc(changed.Changes, func(c plan.Change) bool {
			if c.New == nil || c.Key.IsNodePort() {
				return false
			}
			return c.Old == nil || !fitting.Frontends[c.Key].Equal(prev.Frontends[c.Key])
		})
		if i < 0 {
			return
		}
		bad := changed.Changes[i].Key
		undo := s.fixture.Reject(bad)
		if !s.applyPartially(bad, prev, next, changed) {
			undo()
			return
		}
		tested++
		again := &plan.Plan{Global: next.Global, Frontends: maps.Clone(next.Frontends)}
		for _, k := range next.Keys() {
			if k != bad {
				delete(again.Frontends, k)
				break
			}
		}
		var partial *backend.PartialError
		if _, err := s.program(again, plan.Diff(next, again)); !errors.As(err, &partial) {
			s.Fatalf("%s: another change while %s is rejected: %v", s.step, bad, err)
		}
		s.expectExcept(bad, prev, again)
		undo()
		s.fixture.Advance(maxRejectedDelay)
		for n := 0; ; n++ {
			_, err := s.applyAndSettle(again, &plan.Delta{})
			if err == nil {
				break
			} else if n == maxRejectedApplies {
				s.Fatalf("%s: %s is not rejected any more: %v", s.step, bad, err)
			}
			s.fixture.Advance(maxRejectedDelay)
		}
		s.expectState(again)
	})
	if tested == 0 {
		s.Error("no frontend was rejected")
	}
}

// maxRejectedDelay is after which time a backend tries a frontend again that was rejected once or twice.
const maxRejectedDelay = 3 * time.Second

// applyPartially applies next until everything but one frontend is programmed. It returns false if all of next is, because
// nothing that the fixture refuses was necessary for a change of the frontend.
func (s *session) applyPartially(bad plan.Key, prev, next *plan.Plan, d *plan.Delta) bool {
	s.Helper()
	for range maxRejectedApplies {
		_, err := s.program(next, d)
		var partial *backend.PartialError
		switch {
		case err == nil && prev.Frontends[bad] == nil:
			s.Fatalf("%s: %s is new and was rejected, and Apply returned no error", s.step, bad)
		case err == nil:
			s.expectState(next)
			return false
		case errors.As(err, &partial):
			if partial.Frontends != 1 || partial.Failed[bad] == nil {
				s.Fatalf("%s: %s was rejected, and the error names %v: %v", s.step, bad, partial.Failed, err)
			}
			s.expectExcept(bad, prev, next)
			return true
		}
		d = nil
	}
	s.Fatalf("%s: one rejected frontend, and Apply fails", s.step)
	return false
}

// expectExcept checks that the data plane has next, except for one frontend, which exists if it did before.
func (s *session) expectExcept(bad plan.Key, prev, next *plan.Plan) {
	s.Helper()
	got := s.read()
	want := plan.Normalize(next, s.backend.Caps())
	if old := got.Frontends[bad]; old != nil {
		want.Frontends[bad] = old
	} else {
		delete(want.Frontends, bad)
	}
	if !got.Equal(want) {
		s.Fatalf("%s: the data plane differs from the plan without %s (- want, + got):\n%s", s.step, bad, plan.FormatDiff(want, got))
	}
	if (got.Frontends[bad] != nil) != (prev.Frontends[bad] != nil) {
		s.Fatalf("%s: %s is in the data plane: %v", s.step, bad, got.Frontends[bad] != nil)
	}
}
