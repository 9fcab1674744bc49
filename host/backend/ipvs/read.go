package ipvs

import (
	"context"
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Read decodes the kernel's state into a plan, without changing anything. If the tables are not those of mode ipvs, the
// plan is empty, or the error is one of rules.IsForeignTable.
func Read(ctx context.Context, o Options) (*plan.Plan, error) {
	b, err := openReadOnly(o)
	if err != nil {
		return nil, err
	}
	p, err := b.Read(ctx)
	_ = b.Close()
	return p, err
}

// Read implements backend.Backend.
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
				delete(s.plan.Frontends, k) // packets to it do not reach IPVS
				continue
			}
		}
		s.fillPools(f)
		f.Balance = b.readBalance(s, f)
	}
	return s.plan, nil
}

// readBalance returns the balance that the nftables rules state for a frontend, unless a virtual server has another
// scheduler.
func (b *Backend) readBalance(s *state, f *plan.Frontend) plan.Balance {
	main, inside, outside := s.serverKeys(f.Key)
	for _, k := range []serverKey{main, inside, outside} {
		v := s.servers[k]
		if v == nil || !v.inService() || v.serverConfig == b.serverConfig(f) {
			continue
		}
		endpoints := s.poolEndpoints(k)
		if v.does(b.serverConfig(f), endpoints) {
			continue
		}
		g := *f
		for _, g.Balance = range b.caps.Balances {
			if v.does(b.serverConfig(&g), endpoints) && g.Balance != f.Balance {
				return g.Balance
			}
		}
		return plan.LeastConnections + 1 // not a balance that a plan can contain
	}
	return f.Balance
}

// inService reports whether a virtual server has destinations that are not draining.
func (s *virtualServer) inService() bool {
	return slices.ContainsFunc(s.destinations, func(d destination) bool { return !d.draining })
}

// fillPools sets the endpoints of a frontend's pools to the destinations of its virtual servers.
func (s *state) fillPools(f *plan.Frontend) {
	main, inside, outside := s.serverKeys(f.Key)
	switch {
	case f.Key.IsNodePort():
		f.Pool.Endpoints = s.poolEndpoints(inside)
		if f.Outside != nil {
			f.Outside.Endpoints = s.poolEndpoints(outside)
		}
	case f.Outside == nil:
		f.Pool.Endpoints = s.poolEndpoints(main)
	default:
		f.Outside.Endpoints, f.Pool.Endpoints = s.poolEndpoints(main), s.poolEndpoints(inside)
	}
}

func (s *state) poolEndpoints(k serverKey) (out []plan.Endpoint) {
	v := s.servers[k]
	if v == nil {
		return nil
	}
	for _, d := range v.destinations {
		if d.draining || d.modified {
			continue
		}
		m := plan.Endpoint{Addr: d.addr, Weight: d.weight}
		if d.weight == 0 {
			m.Phase = plan.Draining
		}
		out = append(out, m)
	}
	return out
}
