package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// faultsPerChange is the number of messages of one change at which a fault is injected: the first ones, then fewer.
const faultsPerChange = 6

// faults makes messages of random changes fail, before and after they take effect, in deltas and full syncs, with and
// without a restart before the next Apply.
func (s *session) faults() {
	fired, recovered, n := 0, 0, 0
	s.rounds(4, func(g *testgen.Plans) {
		seed := s.step
		prev := g.Plan()
		next := g.Next(g.Next(g.Next(prev)))
		for i, k := 0, 1; i < s.times(faultsPerChange); i, k = i+1, k+1+i/4 {
			n++
			lost, whole, restart := n%2 == 0, n%3 == 0, n%5 < 2
			s.step = fmt.Sprintf("%s message %d (lost %v, whole %v, restart %v)", seed, k, lost, whole, restart)
			s.apply(prev, nil)
			d := plan.Diff(prev, next)
			if whole {
				d = nil
			}
			disarm := s.fixture.InjectFault(k, lost)
			_, err := s.applyAndSettle(next, d)
			if !disarm() {
				if err != nil {
					s.Fatalf("%s: Apply failed although the fault did not fire: %v", s.step, err)
				}
				s.expectState(next)
				break // the change has fewer messages
			}
			fired++
			if err == nil { // the backend recovered by itself
				recovered++
				s.expectState(next)
			} else {
				s.oldOrNew(prev, next)
			}
			if restart {
				s.restart()
				if err != nil {
					s.oldOrNew(prev, next)
				}
			}
			s.apply(next, nil)
			s.expectNoWrites(next, nil)
		}
	})
	s.Logf("%d faults fired; the backend recovered from %d of them by itself", fired, recovered)
	if fired == 0 {
		s.Error("no fault fired")
	}
}

// oldOrNew checks that every frontend and every global field has its old or its new value.
func (s *session) oldOrNew(prev, next *plan.Plan) {
	s.Helper()
	before := plan.Normalize(prev, s.backend.Caps())
	after := plan.Normalize(next, s.backend.Caps())
	got := s.read()
	keys := map[plan.Key]bool{}
	for _, p := range []*plan.Plan{before, after, got} {
		for k := range p.Frontends {
			keys[k] = true
		}
	}
	same := func(a, b *plan.Frontend) bool { return a == b || a != nil && b != nil && a.Equal(b) }
	for _, k := range slices.SortedFunc(maps.Keys(keys), plan.Key.Compare) {
		g := got.Frontends[k]
		if !same(g, before.Frontends[k]) && !same(g, after.Frontends[k]) {
			s.Fatalf("%s: %s has neither its old nor its new state\nold (-) and got (+):\n%s\nnew (-) and got (+):\n%s",
				s.step, k, plan.FormatDiff(only(before, k), only(got, k)), plan.FormatDiff(only(after, k), only(got, k)))
		}
	}
	a, b, g := &before.Global, &after.Global, &got.Global
	field := func(name string, ok bool) {
		if !ok {
			s.Fatalf("%s: global %s has neither its old nor its new value:\n%s", s.step, name, plan.FormatDiff(before, got))
		}
	}
	addrs, prefixes := slices.Equal[[]netip.Addr], slices.Equal[[]netip.Prefix]
	field("node-port-addresses", addrs(g.NodePortAddrs, a.NodePortAddrs) || addrs(g.NodePortAddrs, b.NodePortAddrs))
	field("localhost-addresses", addrs(g.LocalhostAddrs, a.LocalhostAddrs) || addrs(g.LocalhostAddrs, b.LocalhostAddrs))
	field("pod-sources", prefixes(g.PodSources, a.PodSources) || prefixes(g.PodSources, b.PodSources))
	field("service-cidrs", prefixes(g.ServiceCIDRs, a.ServiceCIDRs) || prefixes(g.ServiceCIDRs, b.ServiceCIDRs))
	field("no-masquerade-cidrs", prefixes(g.NoMasquerade, a.NoMasquerade) || prefixes(g.NoMasquerade, b.NoMasquerade))
	field("pod-interfaces", slices.Equal(g.PodInterfaces, a.PodInterfaces) || slices.Equal(g.PodInterfaces, b.PodInterfaces))
	field("masquerade-mark", g.MasqueradeMark == a.MasqueradeMark || g.MasqueradeMark == b.MasqueradeMark)
}

// only returns the part of a plan that concerns one key.
func only(p *plan.Plan, k plan.Key) *plan.Plan {
	out := empty()
	if f := p.Frontends[k]; f != nil {
		out.Frontends[k] = f
	}
	return out
}
