package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

// addDestinations creates the virtual servers of a frontend and adds destinations. It keeps all that take connections.
// A destination that cannot be added is an error of the frontend only if none is left to take new connections.
func (b *Backend) addDestinations(u *frontendUpdate) error {
	for i := range u.servers {
		su := &u.servers[i]
		if !su.wanted {
			continue
		}
		s, err := b.ensureServer(u, su)
		if err != nil {
			return err
		}
		s.wanted = true
		// At an address that is local already, a new virtual server would take connections before the rules do. Other
		// addresses become local later, and while switching modes the old tables still take the connections.
		su.deferWeight = su.key.mark == 0 && b.state.nodeLocal[su.key.addr] && !b.state.listed[u.key] && !b.state.switchingMode
		for _, m := range su.destinations {
			if err := b.addDestination(su, s, m); err != nil {
				u.addError(err)
			}
		}
		if !s.acceptsNew(su.destinations) && !(su.deferWeight && s.hasAny(su.destinations)) {
			return fmt.Errorf("virtual server %s would have no real server for new connections", su.key)
		}
	}
	return nil
}

func (b *Backend) addDestination(su *serverUpdate, s *virtualServer, m plan.Endpoint) error {
	want := destination{addr: m.Addr, weight: m.Weight}
	if su.deferWeight {
		want.weight = 0
	}
	at, ok := s.find(m.Addr)
	switch {
	case !ok:
		if err := b.send(op{kind: opAddDestination, key: su.key, destination: want}); err != nil {
			return err
		}
		s.destinations = slices.Insert(s.destinations, at, want)
	case s.destinations[at].draining, s.destinations[at].weight == 0 && want.weight > 0:
		return b.setDestination(su.key, s, at, want)
	}
	return nil
}

func (b *Backend) setDestination(k serverKey, s *virtualServer, at int, want destination) error {
	if s.destinations[at] == want {
		return nil
	}
	if err := b.send(op{kind: opSetDestination, key: k, destination: want}); err != nil {
		return err
	}
	s.destinations[at] = want
	return nil
}

// acceptsNew reports whether a virtual server has one of these endpoints as a destination for new connections. It is
// true if all of them have weight 0.
func (s *virtualServer) acceptsNew(endpoints []plan.Endpoint) bool {
	allQuiesced := true
	for _, m := range endpoints {
		if m.Weight == 0 {
			continue
		}
		allQuiesced = false
		if at, ok := s.find(m.Addr); ok && s.destinations[at].weight > 0 {
			return true
		}
	}
	return allQuiesced
}

// hasAny reports whether a virtual server has one of these endpoints as a destination.
func (s *virtualServer) hasAny(endpoints []plan.Endpoint) bool {
	return slices.ContainsFunc(endpoints, func(m plan.Endpoint) bool { _, ok := s.find(m.Addr); return ok })
}

// setWeights sets weights. Those that grow come first.
func (b *Backend) setWeights(u *frontendUpdate) {
	for i := range u.servers {
		su := &u.servers[i]
		s := b.state.servers[su.key]
		if !su.wanted || s == nil || u.failed && su.deferWeight {
			continue
		}
		for _, grow := range []bool{true, false} {
			if !grow && !s.acceptsNew(su.destinations) {
				continue // keep those that take connections
			}
			for _, m := range su.destinations {
				at, ok := s.find(m.Addr)
				if !ok || (m.Weight > s.destinations[at].weight) != grow {
					continue
				}
				if err := b.setDestination(su.key, s, at, destination{addr: m.Addr, weight: m.Weight}); err != nil {
					u.addError(err)
				}
			}
		}
	}
}

// drainDestinations removes the destinations that a frontend no longer has, and then its unused virtual servers.
// Destinations with connections are drained, except over UDP.
//
// A failed frontend keeps its virtual servers, since its rules still pass connections to them, but loses the
// destinations that none of its new pools contains: without a destination for new connections, a virtual server rejects
// them.
func (b *Backend) drainDestinations(u *frontendUpdate) {
	var all []plan.Endpoint
	if u.failed {
		for i := range u.servers {
			all = append(all, u.servers[i].destinations...)
		}
	}
	for i := range u.servers {
		su := &u.servers[i]
		s := b.state.servers[su.key]
		if s == nil {
			continue
		}
		keep := su.destinations
		if s.wanted = su.wanted; u.failed {
			s.wanted, keep = true, all
		}
		if !s.acceptsNew(keep) {
			continue // the old destinations are the only ones that take connections
		}
		b.removeDestinations(u, su, s, keep)
		if err := b.deleteIfUnused(su.key); err != nil {
			u.addError(err)
		}
	}
}

// removeDestinations drains or deletes all destinations except keep.
func (b *Backend) removeDestinations(u *frontendUpdate, su *serverUpdate, s *virtualServer, keep []plan.Endpoint) {
	kept := make(map[netip.AddrPort]bool, len(keep))
	for _, m := range keep {
		kept[m.Addr] = true
	}
	for at := 0; at < len(s.destinations); at++ {
		d := s.destinations[at]
		switch {
		case kept[d.addr] || d.draining:
		case su.drains:
			if err := b.setDestination(su.key, s, at, destination{addr: d.addr, draining: true}); err != nil {
				u.addError(err)
				continue
			}
			b.drains.add(su.key)
		default:
			if err := b.send(op{kind: opDelDestination, key: su.key, destination: d}); err != nil {
				u.addError(err)
				continue
			}
			s.destinations = slices.Delete(s.destinations, at, at+1)
			at--
		}
	}
}
