package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// state is what the kernel contains.
type state struct {
	plan   *plan.Plan        // as read from the nftables rules: pools have no endpoints. Only load sets it.
	listed map[plan.Key]bool // frontends of the nftables rules
	marks  nftables.Marks
	// switchingMode: the tables are not those of mode ipvs. They may be those of mode nftables, which forward by
	// themselves.
	switchingMode bool

	servers map[serverKey]*virtualServer
	foreign map[serverKey]serverConfig // virtual servers of other programs

	nodeAddrs                          // nodeLocal includes addresses that are local by a route
	localOnLinks   map[netip.Addr]bool // those of nodeLocal that are on a link
	kubeProxyOwned map[netip.Addr]bool // see onKubeProxyLink
	guardsRead     map[netip.Addr]bool // guarded according to the nftables rules, when load read them
	guarded        map[netip.Addr]bool // to be guarded: see Backend.addGuards
	marksInUse     map[uint32]bool     // packet marks
	frontendsAt    map[netip.Addr]int  // number of frontends by VIP
	serversAt      map[netip.Addr]int  // number of virtual servers by VIP
	unknownVIP     [2]int              // number of fwmark services whose VIP is not known, IPv4 and IPv6
}

// virtualServer is a virtual server of sluice.
type virtualServer struct {
	serverConfig
	destinations []destination // sorted by address
	wanted       bool          // a frontend of the plan uses it
	// vip is the address that clients connect to. A fwmark service has that of its frontend: unspecified for a NodePort,
	// invalid if the frontend is deleted and was not known.
	vip netip.Addr
}

func (s *virtualServer) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.destinations, a, func(d destination, a netip.AddrPort) int { return d.addr.Compare(a) })
}

// load reads the kernel's state.
func (b *Backend) load(ctx context.Context) (*state, error) {
	s := &state{
		listed: map[plan.Key]bool{}, servers: map[serverKey]*virtualServer{}, foreign: map[serverKey]serverConfig{},
		kubeProxyOwned: map[netip.Addr]bool{}, marksInUse: map[uint32]bool{}, frontendsAt: map[netip.Addr]int{}, serversAt: map[netip.Addr]int{},
	}
	var err error
	s.plan, s.marks, s.guardsRead, err = b.rules.ReadMarks(ctx)
	if nftables.IsForeignTable(err) {
		s.plan, s.marks, err = &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}, nftables.Marks{}, nil
		s.switchingMode = true
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: read nftables rules: %w", err)
	}
	for k := range s.plan.Frontends {
		s.countFrontend(k, 1)
	}
	vips := map[uint32]netip.Addr{}
	for k, m := range s.marks {
		s.marksInUse[m.Inside], s.marksInUse[m.Outside] = true, true
		vips[m.Inside], vips[m.Outside] = k.Addr, k.Addr
	}
	all, err := b.ipvs.listServers()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for k, c := range all {
		if c.flags&flagOwned == 0 {
			s.foreign[k] = c
			s.marksInUse[k.mark] = true
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		destinations, err := b.readDestinations(k)
		if err != nil {
			return nil, fmt.Errorf("ipvs: %w", err)
		}
		vip := k.addr
		if k.mark != 0 {
			vip = vips[k.mark]
		}
		s.addServer(k, &virtualServer{serverConfig: c, destinations: destinations, vip: vip})
	}
	if s.nodeAddrs, err = b.links.listAddrs(); err != nil {
		return nil, err
	}
	s.localOnLinks, s.guarded = maps.Clone(s.nodeLocal), s.vips()
	return s, nil
}

// readDestinations returns the destinations of a virtual server, sorted by address.
func (b *Backend) readDestinations(k serverKey) ([]destination, error) {
	list, err := b.ipvs.listDestinations(k)
	if err != nil {
		return nil, fmt.Errorf("list real servers of virtual server %s: %w", k, withHint(err))
	}
	out := make([]destination, len(list))
	for i, d := range list {
		out[i] = d.destination
	}
	slices.SortFunc(out, func(a, b destination) int { return a.addr.Compare(b.addr) })
	return out, nil
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

// usedByServer reports whether a virtual server uses an address, or may use it.
func (s *state) usedByServer(a netip.Addr) bool {
	return s.serversAt[a] > 0 || s.unknownVIP[boolToInt(a.Is6())] > 0
}

// countFrontend adds a frontend to listed and frontendsAt if by is 1, and removes it if by is -1. Repeating it changes
// nothing.
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

// serverKeys returns the virtual servers that a frontend may have: the one at its address, and the fwmark services of
// its pools for inside and outside sources. Those that it cannot have are zero.
func (s *state) serverKeys(k plan.Key) (main, inside, outside serverKey) {
	m := s.marks[k]
	return serverKeys(k, m.Inside, m.Outside)
}

func serverKeys(k plan.Key, insideMark, outsideMark uint32) (main, inside, outside serverKey) {
	if !k.IsNodePort() {
		main = addrKey(k.Addr, k.Port, k.Protocol)
	}
	if insideMark != 0 {
		inside = serverKey{mark: insideMark, v6: k.Addr.Is6()}
	}
	if outsideMark != 0 {
		outside = serverKey{mark: outsideMark, v6: k.Addr.Is6()}
	}
	return main, inside, outside
}
