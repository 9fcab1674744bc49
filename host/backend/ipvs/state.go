package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/plan"
)

// state is what the kernel has.
type state struct {
	plan    *plan.Plan // as the companion tells it, without members; not kept up to date in the mirror
	listed  map[plan.Key]bool
	marks   rules.Marks
	servers map[serverKey]*virtualServer
	foreign map[serverKey]serverConfig
	// switchingMode: the tables are not a companion's, but maybe those of the nftables backend, which forward by themselves.
	switchingMode  bool
	nodeAddrs                          // own has those too that are the node's by a route
	localOnLinks   map[netip.Addr]bool // of own, those that are on its links
	kubeProxyOwned map[netip.Addr]bool // as in place
	guardsRead     map[netip.Addr]bool // the companion was read to guard these
	guarded        map[netip.Addr]bool // it is to guard these

	marksInUse  map[uint32]bool    // in use
	frontendsAt map[netip.Addr]int // frontends at an address
	serversAt   map[netip.Addr]int // virtual servers that have an address as their home
	unknownVIP  [2]int             // virtual servers by mark whose home is not known, of IPv4 and IPv6
}

// virtualServer is a virtual server of sluice's.
type virtualServer struct {
	serverConfig
	destinations []destination // sorted by address
	wanted       bool          // a frontend of the plan has it
	// vip is the address that connections come to. One by mark has that of its frontend; it is unspecified for a
	// NodePort, and invalid where the frontend is gone and was not known.
	vip netip.Addr
}

func (s *virtualServer) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.destinations, a, func(m destination, a netip.AddrPort) int { return m.addr.Compare(a) })
}

// load reads everything.
func (b *Backend) load(ctx context.Context) (*state, error) {
	s := &state{
		listed: map[plan.Key]bool{}, servers: map[serverKey]*virtualServer{}, foreign: map[serverKey]serverConfig{},
		kubeProxyOwned: map[netip.Addr]bool{}, marksInUse: map[uint32]bool{}, frontendsAt: map[netip.Addr]int{}, serversAt: map[netip.Addr]int{},
	}
	var err error
	s.plan, s.marks, s.guardsRead, err = b.rules.ReadMarks(ctx)
	if rules.IsForeignTable(err) {
		s.plan, s.marks, err = &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}, rules.Marks{}, nil
		s.switchingMode = true
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: the companion: %w", err)
	}
	for k := range s.plan.Frontends {
		s.countFrontend(k, 1)
	}
	homes := map[uint32]netip.Addr{}
	for k, m := range s.marks {
		s.marksInUse[m.Inside], s.marksInUse[m.Outside] = true, true
		homes[m.Inside], homes[m.Outside] = k.Addr, k.Addr
	}
	all, err := b.ipvs.listServers()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for k, v := range all {
		if v.flags&flagOurs == 0 {
			s.foreign[k] = v
			s.marksInUse[k.mark] = true
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		members, err := b.readDestinations(k)
		if err != nil {
			return nil, err
		}
		home := k.addr
		if k.mark != 0 {
			home = homes[k.mark]
		}
		s.addServer(k, &virtualServer{serverConfig: v, destinations: members, vip: home})
	}
	if s.nodeAddrs, err = b.links.listAddrs(); err != nil {
		return nil, err
	}
	s.localOnLinks, s.guarded = maps.Clone(s.nodeLocal), maps.Clone(s.bound)
	maps.Copy(s.guarded, s.otherLinks)
	maps.DeleteFunc(s.guarded, func(a netip.Addr, _ bool) bool { return s.nodeLocal[a] })
	return s, nil
}

func (b *Backend) readDestinations(k serverKey) ([]destination, error) {
	list, err := b.ipvs.listDestinations(k)
	if err != nil {
		return nil, fmt.Errorf("ipvs: list the members of virtual server %s: %w", k, withHint(err))
	}
	members := make([]destination, len(list))
	for i, m := range list {
		members[i] = m.destination
		members[i].modified = m.foreign
	}
	slices.SortFunc(members, func(a, b destination) int { return a.addr.Compare(b.addr) })
	return members, nil
}

func (s *state) addServer(k serverKey, v *virtualServer) {
	s.servers[k] = v
	if k.mark != 0 {
		s.marksInUse[k.mark] = true
	}
	s.countServer(k, v, 1)
}

func (s *state) removeServer(k serverKey) {
	s.countServer(k, s.servers[k], -1)
	delete(s.servers, k)
}

func (s *state) countServer(k serverKey, v *virtualServer, by int) {
	if !v.vip.IsValid() {
		s.unknownVIP[boolToInt(k.v6)] += by
	} else if s.serversAt[v.vip] += by; s.serversAt[v.vip] == 0 {
		delete(s.serversAt, v.vip)
	}
}

// usedByServer tells whether virtual servers need an address, or may need it.
func (s *state) usedByServer(a netip.Addr) bool {
	return s.serversAt[a] > 0 || s.unknownVIP[boolToInt(a.Is6())] > 0
}

// countFrontend counts a frontend for its address, by 1 or -1.
func (s *state) countFrontend(k plan.Key, by int) {
	if (by > 0) == s.listed[k] {
		return
	}
	if by > 0 {
		s.listed[k] = true
	} else {
		delete(s.listed, k)
	}
	if k.IsNodePort() {
		return
	}
	if s.frontendsAt[k.Addr] += by; s.frontendsAt[k.Addr] == 0 {
		delete(s.frontendsAt, k.Addr)
	}
}

// serverKeys are those of the virtual servers that a frontend may have: by its address, and by the marks of its pools.
func (s *state) serverKeys(k plan.Key) (main, inside, outside serverKey) {
	v6 := k.Addr.Is6()
	if !k.IsNodePort() {
		main = addrKey(k.Addr, k.Port, k.Protocol)
	}
	m := s.marks[k]
	if m.Inside != 0 {
		inside = serverKey{mark: m.Inside, v6: v6}
	}
	if m.Outside != 0 {
		outside = serverKey{mark: m.Outside, v6: v6}
	}
	return main, inside, outside
}
