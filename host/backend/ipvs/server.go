package ipvs

import (
	"fmt"
	"slices"
)

// server gives the virtual server of a part, made or taken over when it is not sluice's yet.
func (b *Backend) server(j *job, p *part) (*server, error) {
	if s := b.now.servers[p.key]; s != nil {
		return s, nil
	}
	s := &server{service: p.service, home: j.key.Addr}
	if taken, err := b.taken(p.key); err != nil {
		return nil, err
	} else if taken {
		if err := b.takeOver(p, s); err != nil {
			return nil, err
		}
	} else if err := b.do(op{kind: addServer, key: p.key, service: p.service}); err != nil {
		return nil, err
	}
	b.now.put(p.key, s)
	return s, nil
}

// taken tells whether somebody else's virtual server is there, still.
func (b *Backend) taken(k serverKey) (bool, error) {
	if _, was := b.now.foreign[k]; !was {
		return false, nil
	}
	_, is, err := b.ipvs.server(k)
	if err != nil {
		return false, fmt.Errorf("look at virtual server %s: %w", k, hint(err))
	}
	if !is {
		delete(b.now.foreign, k)
	}
	return is, nil
}

// takeOver makes somebody else's virtual server sluice's, with its members; those that are forwarded in another way, or
// have thresholds, are changed to ours.
func (b *Backend) takeOver(p *part, s *server) error {
	for _, x := range b.o.ExcludeCIDRs {
		if x.Contains(p.key.addr) {
			return fmt.Errorf("virtual server %s is somebody else's, in %s of ipvs.excludeCIDRs", p.key, x)
		}
	}
	b.log.Warn("taking over a virtual server", "server", p.key.String())
	list, err := b.ipvs.members(p.key)
	if err != nil {
		return fmt.Errorf("list the members of virtual server %s: %w", p.key, hint(err))
	}
	if err := b.do(op{kind: setServer, key: p.key, service: p.service}); err != nil {
		return err
	}
	for _, m := range list {
		if m.foreign {
			if err := b.do(op{kind: setMember, key: p.key, member: m.member}); err != nil {
				b.unsure = true // it is sluice's by now, with members that are not
				return err
			}
		}
		s.members = append(s.members, m.member)
	}
	slices.SortFunc(s.members, func(a, b member) int { return a.addr.Compare(b.addr) })
	delete(b.now.foreign, p.key)
	return nil
}

// removeEmpty deletes a virtual server that nobody wants and that has no member.
func (b *Backend) removeEmpty(k serverKey) error {
	s := b.now.servers[k]
	if s == nil || s.wanted || len(s.members) > 0 {
		return nil
	}
	if err := b.do(op{kind: delServer, key: k}); err != nil {
		return err
	}
	b.now.remove(k)
	b.linger.drop(k)
	if k.mark != 0 {
		delete(b.now.byMark, k.mark)
	}
	return nil
}
