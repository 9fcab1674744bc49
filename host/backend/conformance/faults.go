package conformance

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/lab/plangen"
	"github.com/sluice-proxy/sluice/host/plan"
)

// faultsAPair is at how many messages of one change a fault is tried, for each depth: the first ones and then fewer.
const faultsAPair = 6

// faults fails messages of random changes, before they take effect and after, in deltas and whole plans, with and
// without a restart before the repair.
func (s *session) faults() {
	fired, recovered, n := 0, 0, 0
	s.rounds(6, func(g *plangen.Gen) {
		seed := s.where
		prev := g.Plan()
		next := g.Next(g.Next(g.Next(prev)))
		for i, k := 0, 1; i < s.times(faultsAPair); i, k = i+1, k+1+i/4 {
			n++
			lost, whole, restart := n%2 == 0, n%3 == 0, n%5 < 2
			s.where = fmt.Sprintf("%s message %d (lost %v, whole %v, restart %v)", seed, k, lost, whole, restart)
			s.apply(prev, nil)
			d := plan.Diff(prev, next)
			if whole {
				d = nil
			}
			disarm := s.sub.Inject(k, lost)
			_, err := s.try(next, d)
			if !disarm() {
				if err != nil {
					s.Fatalf("%s: the fault did not fire, and yet: %v", s.where, err)
				}
				s.holds(next)
				break // so many messages there are not
			}
			fired++
			if err == nil { // the backend found out what happened, or tried again
				recovered++
				s.holds(next)
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
			s.quiet(next, nil)
		}
	})
	s.Logf("%d faults fired, %d of them healed by the backend itself", fired, recovered)
	if fired == 0 {
		s.Error("no fault fired")
	}
}

// oldOrNew checks that every frontend and every global field is as it was or as it shall be.
func (s *session) oldOrNew(prev, next *plan.Plan) {
	s.Helper()
	was, _ := plan.Normalize(prev, s.backend.Caps())
	shall, _ := plan.Normalize(next, s.backend.Caps())
	got := s.read()
	keys := map[plan.Key]bool{}
	for _, p := range []*plan.Plan{was, shall, got} {
		for k := range p.Frontends {
			keys[k] = true
		}
	}
	same := func(a, b *plan.Frontend) bool { return a == b || a != nil && b != nil && a.Equal(b) }
	for _, k := range slices.SortedFunc(maps.Keys(keys), plan.Key.Compare) {
		g := got.Frontends[k]
		if !same(g, was.Frontends[k]) && !same(g, shall.Frontends[k]) {
			s.Fatalf("%s: %s is neither as it was nor as it shall be\nwas (-) and is (+):\n%s\nshall be (-) and is (+):\n%s",
				s.where, k, plan.FormatDiff(only(was, k), only(got, k)), plan.FormatDiff(only(shall, k), only(got, k)))
		}
	}
	a, b, g := &was.Global, &shall.Global, &got.Global
	field := func(name string, ok bool) {
		if !ok {
			s.Fatalf("%s: global %s is neither as it was nor as it shall be:\n%s", s.where, name, plan.FormatDiff(was, got))
		}
	}
	addrs, prefixes := slices.Equal[[]netip.Addr], slices.Equal[[]netip.Prefix]
	field("node-port-addresses", addrs(g.NodePortAddrs, a.NodePortAddrs) || addrs(g.NodePortAddrs, b.NodePortAddrs))
	field("pod-sources", prefixes(g.PodSources, a.PodSources) || prefixes(g.PodSources, b.PodSources))
	field("service-cidrs", prefixes(g.ServiceCIDRs, a.ServiceCIDRs) || prefixes(g.ServiceCIDRs, b.ServiceCIDRs))
	field("pod-interfaces", slices.Equal(g.PodInterfaces, a.PodInterfaces) || slices.Equal(g.PodInterfaces, b.PodInterfaces))
	field("masquerade-mark", g.MasqueradeMark == a.MasqueradeMark || g.MasqueradeMark == b.MasqueradeMark)
}

// only is the part of a plan that is about one key.
func only(p *plan.Plan, k plan.Key) *plan.Plan {
	out := empty()
	if f := p.Frontends[k]; f != nil {
		out.Frontends[k] = f
	}
	return out
}
