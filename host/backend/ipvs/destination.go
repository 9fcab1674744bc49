package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// addDestinations makes virtual servers and adds members. Nothing that takes connections stops to. A member that cannot be
// added is left out, unless nobody is left to take connections.
func (b *Backend) addDestinations(j *frontendUpdate) error {
	for i := range j.servers {
		p := &j.servers[i]
		if !p.wanted {
			continue
		}
		s, err := b.ensureServer(j, p)
		if err != nil {
			return err
		}
		s.wanted = true
		// At an address of the node itself a new virtual server takes connections at once. Elsewhere the address comes
		// later; in a change of mode the tables from before still take them.
		p.deferWeight = p.key.mark == 0 && b.state.nodeLocal[p.key.addr] && !b.state.listed[j.key] && !b.state.switchingMode
		for _, m := range p.destinations {
			if err := b.addDestination(p, s, m); err != nil {
				j.addError(err)
			}
		}
		if !s.acceptsNew(p.destinations) && !(p.deferWeight && s.hasAny(p.destinations)) {
			return fmt.Errorf("virtual server %s would be without members", p.key)
		}
	}
	return nil
}

func (b *Backend) addDestination(p *serverUpdate, s *virtualServer, m plan.Member) error {
	want := destination{addr: m.Addr, weight: m.Weight}
	if p.deferWeight {
		want.weight = 0
	}
	at, ok := s.find(m.Addr)
	switch {
	case !ok:
		if err := b.send(op{kind: opAddDestination, key: p.key, destination: want}); err != nil {
			return err
		}
		s.destinations = slices.Insert(s.destinations, at, want)
	case s.destinations[at].draining, s.destinations[at].weight == 0 && want.weight > 0:
		return b.setDestination(p.key, s, at, want)
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

// acceptsNew tells whether a virtual server has a member for new connections among these; so it does when all of these are
// to have none.
func (s *virtualServer) acceptsNew(members []plan.Member) bool {
	idle := true
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		idle = false
		if at, ok := s.find(m.Addr); ok && s.destinations[at].weight > 0 {
			return true
		}
	}
	return idle
}

func (s *virtualServer) hasAny(members []plan.Member) bool {
	return slices.ContainsFunc(members, func(m plan.Member) bool { _, ok := s.find(m.Addr); return ok })
}

// setWeights sets weights and schedulers, first those that grow.
func (b *Backend) setWeights(j *frontendUpdate) {
	for i := range j.servers {
		p := &j.servers[i]
		s := b.state.servers[p.key]
		if !p.wanted || s == nil || j.failed && p.deferWeight {
			continue
		}
		if s.serverConfig != p.config {
			if err := b.send(op{kind: opSetServer, key: p.key, serverConfig: p.config}); err != nil {
				j.addError(err)
			} else {
				s.serverConfig = p.config
			}
		}
		for _, grow := range []bool{true, false} {
			if !grow && !s.acceptsNew(p.destinations) {
				continue // what has weight keeps it
			}
			for _, m := range p.destinations {
				at, ok := s.find(m.Addr)
				if !ok || (m.Weight > s.destinations[at].weight) != grow {
					continue
				}
				if err := b.setDestination(p.key, s, at, destination{addr: m.Addr, weight: m.Weight}); err != nil {
					j.addError(err)
				}
			}
		}
	}
}

// drainDestinations takes members off that the frontend has no more, and virtual servers that nobody has. A member with
// connections stays for them, unless they are of UDP.
//
// Of a frontend that stays as it was in the companion, what none of its new pools has goes too, and the virtual server
// stays: without a member for new connections it refuses them.
func (b *Backend) drainDestinations(j *frontendUpdate) {
	var all []plan.Member
	if j.failed {
		for i := range j.servers {
			all = append(all, j.servers[i].destinations...)
		}
	}
	for i := range j.servers {
		p := &j.servers[i]
		s := b.state.servers[p.key]
		if s == nil {
			continue
		}
		keep := p.destinations
		if s.wanted = p.wanted; j.failed {
			s.wanted, keep = true, all
		}
		if !s.acceptsNew(keep) {
			continue // whoever takes connections now goes on: nobody else does
		}
		b.removeDestinations(j, p, s, keep)
		if err := b.deleteIfUnused(p.key); err != nil {
			j.addError(err)
		}
	}
}

// removeDestinations takes off all but these.
func (b *Backend) removeDestinations(j *frontendUpdate, p *serverUpdate, s *virtualServer, keep []plan.Member) {
	stay := make(map[netip.AddrPort]bool, len(keep))
	for _, m := range keep {
		stay[m.Addr] = true
	}
	for at := 0; at < len(s.destinations); at++ {
		m := s.destinations[at]
		switch {
		case stay[m.addr] || m.draining:
		case p.drains:
			if err := b.setDestination(p.key, s, at, destination{addr: m.addr, draining: true}); err != nil {
				j.addError(err)
				continue
			}
			b.drains.add(p.key)
		default:
			if err := b.send(op{kind: opDelDestination, key: p.key, destination: m}); err != nil {
				j.addError(err)
				continue
			}
			s.destinations = slices.Delete(s.destinations, at, at+1)
			at--
		}
	}
}
