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
		if !k.IsNodePort() && !s.bound[k.Addr] && !s.own[k.Addr] && !s.strays[k.Addr] {
			at, err := b.links.where(k.Addr)
			if err != nil {
				return nil, fmt.Errorf("ipvs: look up the route to %s: %w", k.Addr, err)
			}
			if at != onNode {
				delete(s.plan.Frontends, k) // packets to it do not come here
				continue
			}
		}
		s.raise(f)
		f.Balance = b.balance(s, f)
	}
	return s.plan, nil
}

// balance is a frontend's as the companion names it, unless a virtual server has another scheduler.
func (b *Backend) balance(s *state, f *plan.Frontend) plan.Balance {
	main, inside, outside := s.keys(f.Key)
	for _, k := range []serverKey{main, inside, outside} {
		v := s.servers[k]
		if v == nil || !v.serves() || v.service == b.service(f) {
			continue
		}
		g := *f
		for _, g.Balance = range b.caps.Balances {
			if v.service == b.service(&g) && g.Balance != f.Balance {
				return g.Balance
			}
		}
		return plan.LeastConnections + 1 // none that a plan can ask for
	}
	return f.Balance
}

// serves tells whether a virtual server has more than members that linger.
func (s *server) serves() bool {
	return slices.ContainsFunc(s.members, func(m member) bool { return !m.lingering })
}

// raise gives a frontend its members.
func (s *state) raise(f *plan.Frontend) {
	main, inside, outside := s.keys(f.Key)
	if f.Key.IsNodePort() {
		f.Pool.Members = s.membersOf(inside)
		if f.Outside != nil {
			f.Outside.Members = s.membersOf(outside)
		}
		return
	}
	if f.Outside == nil {
		f.Pool.Members = s.membersOf(main)
		return
	}
	f.Outside.Members, f.Pool.Members = s.membersOf(main), s.membersOf(inside)
}

func (s *state) membersOf(k serverKey) (out []plan.Member) {
	v := s.servers[k]
	if v == nil {
		return nil
	}
	for _, m := range v.members {
		if m.lingering || m.spoiled {
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
