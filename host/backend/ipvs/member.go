package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/plan"
)

// membersIn makes virtual servers and adds members. Nothing that takes connections stops to. A member that cannot be
// added is left out, unless nobody is left to take connections.
func (b *Backend) membersIn(j *job) error {
	for i := range j.parts {
		p := &j.parts[i]
		if !p.wanted {
			continue
		}
		s, err := b.server(j, p)
		if err != nil {
			return err
		}
		s.wanted = true
		// At an address of the node itself a new virtual server takes connections at once. Elsewhere the address comes
		// later; in a change of mode the tables from before still take them.
		p.hold = p.key.mark == 0 && b.now.own[p.key.addr] && !b.now.listed[j.key] && !b.now.replaces
		for _, m := range p.members {
			if err := b.memberIn(p, s, m); err != nil {
				j.fail(err)
			}
		}
		if !s.takes(p.members) && !(p.hold && s.has(p.members)) {
			return fmt.Errorf("virtual server %s would be without members", p.key)
		}
	}
	return nil
}

func (b *Backend) memberIn(p *part, s *server, m plan.Member) error {
	want := member{addr: m.Addr, weight: m.Weight}
	if p.hold {
		want.weight = 0
	}
	at, ok := s.find(m.Addr)
	switch {
	case !ok:
		if err := b.do(op{kind: addMember, key: p.key, member: want}); err != nil {
			return err
		}
		s.members = slices.Insert(s.members, at, want)
	case s.members[at].lingering, s.members[at].weight == 0 && want.weight > 0:
		return b.setMember(p.key, s, at, want)
	}
	return nil
}

func (b *Backend) setMember(k serverKey, s *server, at int, want member) error {
	if s.members[at] == want {
		return nil
	}
	if err := b.do(op{kind: setMember, key: k, member: want}); err != nil {
		return err
	}
	s.members[at] = want
	return nil
}

// takes tells whether a virtual server has a member for new connections among these; so it does when all of these are
// to have none.
func (s *server) takes(members []plan.Member) bool {
	idle := true
	for _, m := range members {
		if m.Weight == 0 {
			continue
		}
		idle = false
		if at, ok := s.find(m.Addr); ok && s.members[at].weight > 0 {
			return true
		}
	}
	return idle
}

func (s *server) has(members []plan.Member) bool {
	return slices.ContainsFunc(members, func(m plan.Member) bool { _, ok := s.find(m.Addr); return ok })
}

// weights sets weights and schedulers, first those that grow.
func (b *Backend) weights(j *job) {
	for i := range j.parts {
		p := &j.parts[i]
		s := b.now.servers[p.key]
		if !p.wanted || s == nil || j.stays && p.hold {
			continue
		}
		if s.service != p.service {
			if err := b.do(op{kind: setServer, key: p.key, service: p.service}); err != nil {
				j.fail(err)
			} else {
				s.service = p.service
			}
		}
		for _, grow := range []bool{true, false} {
			if !grow && !s.takes(p.members) {
				continue // what has weight keeps it
			}
			for _, m := range p.members {
				at, ok := s.find(m.Addr)
				if !ok || (m.Weight > s.members[at].weight) != grow {
					continue
				}
				if err := b.setMember(p.key, s, at, member{addr: m.Addr, weight: m.Weight}); err != nil {
					j.fail(err)
				}
			}
		}
	}
}

// membersOut takes members off that the frontend has no more, and virtual servers that nobody has. A member with
// connections stays for them, unless they are of UDP.
//
// Of a frontend that stays as it was in the companion, what none of its new pools has goes too, and the virtual server
// stays: without a member for new connections it refuses them.
func (b *Backend) membersOut(j *job) {
	var all []plan.Member
	if j.stays {
		for i := range j.parts {
			all = append(all, j.parts[i].members...)
		}
	}
	for i := range j.parts {
		p := &j.parts[i]
		s := b.now.servers[p.key]
		if s == nil {
			continue
		}
		keep := p.members
		if s.wanted = p.wanted; j.stays {
			s.wanted, keep = true, all
		}
		if !s.takes(keep) {
			continue // whoever takes connections now goes on: nobody else does
		}
		b.off(j, p, s, keep)
		if err := b.removeEmpty(p.key); err != nil {
			j.fail(err)
		}
	}
}

// off takes off all but these.
func (b *Backend) off(j *job, p *part, s *server, keep []plan.Member) {
	stay := make(map[netip.AddrPort]bool, len(keep))
	for _, m := range keep {
		stay[m.Addr] = true
	}
	for at := 0; at < len(s.members); at++ {
		m := s.members[at]
		switch {
		case stay[m.addr] || m.lingering:
		case p.lasts:
			if err := b.setMember(p.key, s, at, member{addr: m.addr, lingering: true}); err != nil {
				j.fail(err)
				continue
			}
			b.linger.add(p.key)
		default:
			if err := b.do(op{kind: delMember, key: p.key, member: m}); err != nil {
				j.fail(err)
				continue
			}
			s.members = slices.Delete(s.members, at, at+1)
			at--
		}
	}
}
