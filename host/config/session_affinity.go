package config

// SessionAffinity bounds the clients whose endpoint is recorded, for each IP family. A Service port whose frontends lead
// to different endpoints, because of a traffic policy Local, has twice the room.
type SessionAffinity struct {
	ReservedClients int // of a Service port's own, while there are at most 64 Service ports with affinity
	SharedClients   int // of all Service ports together, beyond ReservedClients
}

// maxClients is the maximum of both numbers. A client takes about 120 bytes of kernel memory.
const maxClients = 1 << 24

func defaultSessionAffinity() SessionAffinity {
	return SessionAffinity{ReservedClients: 8192, SharedClients: 262144}
}

type affinityEntry struct {
	ReservedClients *int32 `json:"reservedClients"`
	SharedClients   *int32 `json:"sharedClients"`
}

func (p *parser) sessionAffinity(f *configFile, c *Config) {
	for _, n := range []struct {
		field string
		value *int32
		to    *int
	}{
		{"sessionAffinity.reservedClients", f.SessionAffinity.ReservedClients, &c.SessionAffinity.ReservedClients},
		{"sessionAffinity.sharedClients", f.SessionAffinity.SharedClients, &c.SessionAffinity.SharedClients},
	} {
		if n.value == nil {
			continue
		}
		if *n.to = int(*n.value); *n.to < 1 || *n.to > maxClients {
			p.errorf(n.field, "%d is not between 1 and %d", *n.to, maxClients)
		}
	}
}
