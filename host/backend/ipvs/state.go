package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/plan"
)

// state is what the kernel has.
type state struct {
	plan    *plan.Plan // as the companion tells it, without members; not kept up to date in the mirror
	listed  map[plan.Key]bool
	marks   nftables.Marks
	servers map[serverKey]*server
	foreign map[serverKey]service
	// replaces: the tables are not a companion's, but maybe those of the nftables backend, which forward by themselves.
	replaces bool
	placed                       // own has those too that are the node's by a route
	onLinks  map[netip.Addr]bool // of own, those that are on its links
	passing  map[netip.Addr]bool // as in place
	linked   map[netip.Addr]bool // the companion was read to guard these
	guarded  map[netip.Addr]bool // it is to guard these

	byMark map[uint32]bool    // in use
	vips   map[netip.Addr]int // frontends at an address
	at     map[netip.Addr]int // virtual servers that have an address as their home
	lost   [2]int             // virtual servers by mark whose home is not known, of IPv4 and IPv6
}

// server is a virtual server of sluice's.
type server struct {
	service
	members []member // sorted by address
	wanted  bool     // a frontend of the plan has it
	// home is the address that connections come to. One by mark has that of its frontend; it is unspecified for a
	// NodePort, and invalid where the frontend is gone and was not known.
	home netip.Addr
}

func (s *server) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.members, a, func(m member, a netip.AddrPort) int { return m.addr.Compare(a) })
}

// load reads everything.
func (b *Backend) load(ctx context.Context) (*state, error) {
	s := &state{
		listed: map[plan.Key]bool{}, servers: map[serverKey]*server{}, foreign: map[serverKey]service{},
		passing: map[netip.Addr]bool{}, byMark: map[uint32]bool{}, vips: map[netip.Addr]int{}, at: map[netip.Addr]int{},
	}
	var err error
	s.plan, s.marks, s.linked, err = b.companion.ReadMarks(ctx)
	if nftables.NotOurs(err) {
		s.plan, s.marks, err = &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}, nftables.Marks{}, nil
		s.replaces = true
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: the companion: %w", err)
	}
	for k := range s.plan.Frontends {
		s.list(k, 1)
	}
	homes := map[uint32]netip.Addr{}
	for k, m := range s.marks {
		s.byMark[m.Inside], s.byMark[m.Outside] = true, true
		homes[m.Inside], homes[m.Outside] = k.Addr, k.Addr
	}
	all, err := b.ipvs.servers()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	for k, v := range all {
		if v.flags&flagOurs == 0 {
			s.foreign[k] = v
			s.byMark[k.mark] = true
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		members, err := b.membersOf(k)
		if err != nil {
			return nil, err
		}
		home := k.addr
		if k.mark != 0 {
			home = homes[k.mark]
		}
		s.put(k, &server{service: v, members: members, home: home})
	}
	if s.placed, err = b.links.list(); err != nil {
		return nil, err
	}
	s.onLinks, s.guarded = maps.Clone(s.own), maps.Clone(s.bound)
	maps.Copy(s.guarded, s.strays)
	maps.DeleteFunc(s.guarded, func(a netip.Addr, _ bool) bool { return s.own[a] })
	return s, nil
}

func (b *Backend) membersOf(k serverKey) ([]member, error) {
	list, err := b.ipvs.members(k)
	if err != nil {
		return nil, fmt.Errorf("ipvs: list the members of virtual server %s: %w", k, hint(err))
	}
	members := make([]member, len(list))
	for i, m := range list {
		members[i] = m.member
		members[i].spoiled = m.foreign
	}
	slices.SortFunc(members, func(a, b member) int { return a.addr.Compare(b.addr) })
	return members, nil
}

func (s *state) put(k serverKey, v *server) {
	s.servers[k] = v
	if k.mark != 0 {
		s.byMark[k.mark] = true
	}
	s.count(k, v, 1)
}

func (s *state) remove(k serverKey) {
	s.count(k, s.servers[k], -1)
	delete(s.servers, k)
}

func (s *state) count(k serverKey, v *server, by int) {
	if !v.home.IsValid() {
		s.lost[boolToInt(k.v6)] += by
	} else if s.at[v.home] += by; s.at[v.home] == 0 {
		delete(s.at, v.home)
	}
}

// busy tells whether virtual servers need an address, or may need it.
func (s *state) busy(a netip.Addr) bool { return s.at[a] > 0 || s.lost[boolToInt(a.Is6())] > 0 }

// list counts a frontend for its address, by 1 or -1.
func (s *state) list(k plan.Key, by int) {
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
	if s.vips[k.Addr] += by; s.vips[k.Addr] == 0 {
		delete(s.vips, k.Addr)
	}
}

// keys are those of the virtual servers that a frontend may have: by its address, and by the marks of its pools.
func (s *state) keys(k plan.Key) (main, inside, outside serverKey) {
	v6 := k.Addr.Is6()
	if !k.IsNodePort() {
		main = byAddr(k.Addr, k.Port, k.Protocol)
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
