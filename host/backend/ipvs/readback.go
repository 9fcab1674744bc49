package ipvs

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// Read decodes the kernel's state into a plan.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	s, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	for k, f := range s.plan.Frontends {
		if !k.IsNodePort() && !s.bound[k.Addr] && !s.nodeLocal[k.Addr] && !s.otherLinks[k.Addr] {
			at, err := b.links.locate(k.Addr)
			if err != nil {
				return nil, fmt.Errorf("ipvs: look up the route to %s: %w", k.Addr, err)
			}
			if at != onNode {
				delete(s.plan.Frontends, k) // packets to it do not come here
				continue
			}
		}
		s.fillPools(f)
		f.Balance = b.readBalance(s, f)
	}
	return s.plan, nil
}

// readBalance is a frontend's as the companion names it, unless a virtual server has another scheduler.
func (b *Backend) readBalance(s *state, f *plan.Frontend) plan.Balance {
	main, inside, outside := s.serverKeys(f.Key)
	for _, k := range []serverKey{main, inside, outside} {
		v := s.servers[k]
		if v == nil || !v.inService() || v.serverConfig == b.serverConfig(f) {
			continue
		}
		g := *f
		for _, g.Balance = range b.caps.Balances {
			if v.serverConfig == b.serverConfig(&g) && g.Balance != f.Balance {
				return g.Balance
			}
		}
		return plan.LeastConnections + 1 // none that a plan can ask for
	}
	return f.Balance
}

// inService tells whether a virtual server has more than members that linger.
func (s *virtualServer) inService() bool {
	return slices.ContainsFunc(s.destinations, func(m destination) bool { return !m.draining })
}

// fillPools gives a frontend its members.
func (s *state) fillPools(f *plan.Frontend) {
	main, inside, outside := s.serverKeys(f.Key)
	if f.Key.IsNodePort() {
		f.Pool.Members = s.poolMembers(inside)
		if f.Outside != nil {
			f.Outside.Members = s.poolMembers(outside)
		}
		return
	}
	if f.Outside == nil {
		f.Pool.Members = s.poolMembers(main)
		return
	}
	f.Outside.Members, f.Pool.Members = s.poolMembers(main), s.poolMembers(inside)
}

func (s *state) poolMembers(k serverKey) (out []plan.Member) {
	v := s.servers[k]
	if v == nil {
		return nil
	}
	for _, m := range v.destinations {
		if m.draining || m.modified {
			continue
		}
		p := plan.Member{Addr: m.addr, Weight: m.weight}
		if m.weight == 0 {
			p.Phase = plan.Draining
		}
		out = append(out, p)
	}
	return out
}
