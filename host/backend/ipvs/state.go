package ipvs

import (
	"context"
	"errors"
	"fmt"
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
	bound    map[netip.Addr]bool // on our link
	own      map[netip.Addr]bool // the node's own: not ours to add or to take away

	byMark map[uint32]bool    // in use
	vips   map[netip.Addr]int // frontends at an address
	at     map[netip.Addr]int // virtual servers at an address
}

// server is a virtual server of sluice's.
type server struct {
	service
	members []member // sorted by address
	wanted  bool     // a frontend of the plan has it
}

func (s *server) find(a netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.members, a, func(m member, a netip.AddrPort) int { return m.addr.Compare(a) })
}

// load reads everything.
func (b *Backend) load(ctx context.Context) (*state, error) {
	s := &state{
		listed: map[plan.Key]bool{}, servers: map[serverKey]*server{}, foreign: map[serverKey]service{},
		byMark: map[uint32]bool{}, vips: map[netip.Addr]int{}, at: map[netip.Addr]int{},
	}
	var err error
	s.plan, s.marks, err = b.companion.ReadMarks(ctx)
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
	for _, m := range s.marks {
		s.byMark[m.Inside], s.byMark[m.Outside] = true, true
	}
	all, err := b.ipvs.servers()
	if err != nil {
		return nil, fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	for k, v := range all {
		if v.flags&flagOurs == 0 {
			s.foreign[k] = v
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("ipvs: read: %w", err)
		}
		members, err := b.membersOf(k)
		if err != nil {
			return nil, err
		}
		s.put(k, &server{service: v, members: members})
	}
	if s.bound, s.own, err = b.links.list(); err != nil {
		return nil, err
	}
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
	}
	slices.SortFunc(members, func(a, b member) int { return a.addr.Compare(b.addr) })
	return members, nil
}

func (s *state) put(k serverKey, v *server) {
	s.servers[k] = v
	if k.mark != 0 {
		s.byMark[k.mark] = true
	} else {
		s.at[k.addr]++
	}
}

func (s *state) remove(k serverKey) {
	delete(s.servers, k)
	if k.mark == 0 {
		if s.at[k.addr]--; s.at[k.addr] == 0 {
			delete(s.at, k.addr)
		}
	}
}

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

// mark is the companion's Companion.Mark.
func (b *Backend) mark(f *plan.Frontend, outside bool) uint32 {
	m := b.now.marks[f.Key]
	switch {
	case outside:
		return m.Outside
	case f.Outside == nil && !f.Key.IsNodePort():
		return 0
	}
	return m.Inside
}

// errMarks: there are a million.
var errMarks = errors.New("all packet marks are in use")

// newMark finds one that is free.
func (s *state) newMark() (uint32, error) {
	const room = 1<<20 - 1 // the last one has another meaning
	for i := range uint32(room) {
		m := nftables.MarkBase | (uint32(len(s.byMark))+i)%room
		if !s.byMark[m] {
			s.byMark[m] = true
			return m, nil
		}
	}
	return 0, errMarks
}

// Read decodes the kernel's state into a plan.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	s, err := b.load(ctx)
	if err != nil {
		return nil, err
	}
	for k, f := range s.plan.Frontends {
		if !k.IsNodePort() && !s.bound[k.Addr] && !s.own[k.Addr] {
			delete(s.plan.Frontends, k) // packets to it do not come here
			continue
		}
		s.raise(f)
		f.Balance = b.balance(s, f)
	}
	return s.plan, nil
}

// balance is a frontend's as the companion names it, unless a virtual server has another scheduler.
func (b *Backend) balance(s *state, f *plan.Frontend) plan.Balance {
	main, inside, outside := s.keys(f.Key)
	for _, k := range []serverKey{main, inside, outside} {
		v := s.servers[k]
		if v == nil || !v.serves() || v.service == b.service(f) {
			continue
		}
		g := *f
		for _, g.Balance = range b.caps.Balances {
			if v.service == b.service(&g) && g.Balance != f.Balance {
				return g.Balance
			}
		}
		return plan.LeastConnections + 1 // none that a plan can ask for
	}
	return f.Balance
}

// serves tells whether a virtual server has more than members that linger.
func (s *server) serves() bool {
	return slices.ContainsFunc(s.members, func(m member) bool { return !m.lingering })
}

// raise gives a frontend its members.
func (s *state) raise(f *plan.Frontend) {
	main, inside, outside := s.keys(f.Key)
	if f.Key.IsNodePort() {
		f.Pool.Members = s.membersOf(inside)
		if f.Outside != nil {
			f.Outside.Members = s.membersOf(outside)
		}
		return
	}
	if f.Outside == nil {
		f.Pool.Members = s.membersOf(main)
		return
	}
	f.Outside.Members, f.Pool.Members = s.membersOf(main), s.membersOf(inside)
}

func (s *state) membersOf(k serverKey) (out []plan.Member) {
	v := s.servers[k]
	if v == nil {
		return nil
	}
	for _, m := range v.members {
		if m.lingering {
			continue
		}
		p := plan.Member{Addr: m.addr, Weight: m.weight}
		if m.weight == 0 {
			p.Phase = plan.Draining
		}
		out = append(out, p)
	}
	return out
}
