package conformance

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// refusedShare measures a pool that refuses a part of its connections, by weight, while that part changes. Over TCP that is IPv4
// only: across veth pairs, a client of IPv6 repeats its SYN a second later, which is balanced again.
func (s *session) refusedShare() {
	w := s.fixture.Traffic
	n := s.times(300)
	prev := empty()
	for _, family := range s.families() {
		to, c, endpoints := s.oneService(family)
		proto := model.TCP
		if family == model.IPv6 {
			proto = model.UDP
		}
		c.Timeout = answerTimeout
		key := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: proto}
		refusing := netip.AddrPortFrom(plan.Refusing(family), to.Port())
		for _, weights := range [][]uint16{{1, 1, 1}, {3, 0, 1}, {1, 2, 0}, {1, 0, 0}} {
			s.step = fmt.Sprintf("%s weights %v, the last one refused", family, weights)
			list := append([]netip.AddrPort{refusing}, endpoints[:2]...)
			next := service(w.Global, key, list, []uint16{weights[2], weights[0], weights[1]})
			next.Frontends[key].Pool = sorted(next.Frontends[key].Pool)
			s.apply(next, plan.Diff(prev, next))
			s.expectNoWrites(next, nil)
			prev = next
			pool := &s.read().Frontends[key].Pool
			rounds := n
			if w.RoundRobin {
				rounds = (n + pool.Total() - 1) / pool.Total() * pool.Total()
			}
			got := map[netip.AddrPort]int{}
			for range rounds {
				switch seen := s.connect(c, to, proto); seen.Verdict {
				case plan.Forward:
					seen.Close()
					got[seen.Server]++
				case plan.Reject:
					got[refusing]++
				default:
					s.Fatalf("%s: a connection is not answered", s.step)
				}
			}
			s.chiSquare(pool, got, rounds)
		}
		s.restart()
		s.expectNoWrites(prev, nil)
	}
}

func sorted(p plan.Pool) plan.Pool {
	slices.SortFunc(p.Endpoints, func(a, b plan.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return p
}
