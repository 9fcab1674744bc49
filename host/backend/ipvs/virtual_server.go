package ipvs

import (
	"fmt"
	"slices"
)

// ensureServer gives the virtual server of a part, made or taken over when it is not sluice's yet.
func (b *Backend) ensureServer(j *frontendUpdate, p *serverUpdate) (*virtualServer, error) {
	if s := b.state.servers[p.key]; s != nil {
		return s, nil
	}
	s := &virtualServer{serverConfig: p.config, vip: j.key.Addr}
	if taken, err := b.foreignExists(p.key); err != nil {
		return nil, err
	} else if taken {
		if err := b.takeOver(p, s); err != nil {
			return nil, err
		}
	} else if err := b.send(op{kind: opAddServer, key: p.key, serverConfig: p.config}); err != nil {
		return nil, err
	}
	b.state.addServer(p.key, s)
	return s, nil
}

// foreignExists tells whether somebody else's virtual server is there, still.
func (b *Backend) foreignExists(k serverKey) (bool, error) {
	if _, was := b.state.foreign[k]; !was {
		return false, nil
	}
	_, is, err := b.ipvs.getServer(k)
	if err != nil {
		return false, fmt.Errorf("look at virtual server %s: %w", k, withHint(err))
	}
	if !is {
		delete(b.state.foreign, k)
	}
	return is, nil
}

// takeOver makes somebody else's virtual server sluice's, with its members; those that are forwarded in another way, or
// have thresholds, are changed to ours.
func (b *Backend) takeOver(p *serverUpdate, s *virtualServer) error {
	for _, x := range b.o.ExcludeCIDRs {
		if x.Contains(p.key.addr) {
			return fmt.Errorf("virtual server %s is somebody else's, in %s of ipvs.excludeCIDRs", p.key, x)
		}
	}
	b.log.Warn("taking over a virtual server", "server", p.key.String())
	list, err := b.ipvs.listDestinations(p.key)
	if err != nil {
		return fmt.Errorf("list the members of virtual server %s: %w", p.key, withHint(err))
	}
	if err := b.send(op{kind: opSetServer, key: p.key, serverConfig: p.config}); err != nil {
		return err
	}
	for _, m := range list {
		if m.foreign {
			if err := b.send(op{kind: opSetDestination, key: p.key, destination: m.destination}); err != nil {
				b.stateSuspect = true // it is sluice's by now, with members that are not
				return err
			}
		}
		s.destinations = append(s.destinations, m.destination)
	}
	slices.SortFunc(s.destinations, func(a, b destination) int { return a.addr.Compare(b.addr) })
	delete(b.state.foreign, p.key)
	return nil
}

// deleteIfUnused deletes a virtual server that nobody wants and that has no member.
func (b *Backend) deleteIfUnused(k serverKey) error {
	s := b.state.servers[k]
	if s == nil || s.wanted || len(s.destinations) > 0 {
		return nil
	}
	if err := b.send(op{kind: opDelServer, key: k}); err != nil {
		return err
	}
	b.state.removeServer(k)
	b.drains.remove(k)
	if k.mark != 0 {
		delete(b.state.marksInUse, k.mark)
	}
	return nil
}
