package ipvs

import (
	"fmt"
)

// ensureServer returns the virtual server of an update. If sluice has none, it is created or taken over.
func (b *Backend) ensureServer(u *frontendUpdate, su *serverUpdate) (*virtualServer, error) {
	if s := b.state.servers[su.key]; s != nil {
		return s, nil
	}
	s := &virtualServer{serverConfig: su.config, vip: u.key.Addr}
	if was, exists, err := b.readForeign(su.key); err != nil {
		return nil, err
	} else if exists {
		s.scheduler = was.scheduler // setSchedulers changes it
		if err := b.takeOver(su, s); err != nil {
			return nil, err
		}
	} else if err := b.send(op{kind: opAddServer, key: su.key, serverConfig: su.config}); err != nil {
		return nil, err
	}
	b.state.addServer(su.key, s)
	return s, nil
}

// readForeign reads the virtual server that another program has with this key. It may be deleted or changed since load.
func (b *Backend) readForeign(k serverKey) (c serverConfig, exists bool, err error) {
	if _, ok := b.state.foreign[k]; !ok {
		return serverConfig{}, false, nil
	}
	c, exists, err = b.ipvs.getServer(k)
	if err != nil {
		return serverConfig{}, false, fmt.Errorf("read virtual server %s: %w", k, withHint(err))
	}
	if !exists {
		delete(b.state.foreign, k)
	}
	return c, exists, nil
}

// takeOver makes a virtual server of another program sluice's, with its destinations. Destinations that have another
// forwarding method than NAT, or thresholds, are changed.
func (b *Backend) takeOver(su *serverUpdate, s *virtualServer) error {
	for _, x := range b.o.ExcludeCIDRs {
		if x.Contains(su.key.addr) {
			return fmt.Errorf("virtual server %s belongs to another program and is in %s of ipvs.excludeCIDRs", su.key, x)
		}
	}
	b.log.Warn("taking over a virtual server of another program", "server", su.key.String())
	list, err := b.readDestinations(su.key)
	if err != nil {
		return err
	}
	if err := b.send(op{kind: opSetServer, key: su.key, serverConfig: s.serverConfig}); err != nil {
		return err
	}
	for _, d := range list {
		if d.modified {
			d.modified = false
			if err := b.send(op{kind: opSetDestination, key: su.key, destination: d}); err != nil {
				b.stateSuspect = true // the virtual server is sluice's now, the destination not yet
				return err
			}
		}
		s.destinations = append(s.destinations, d)
	}
	delete(b.state.foreign, su.key)
	return nil
}

// deleteIfUnused deletes a virtual server that no frontend uses and that has no destination.
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
