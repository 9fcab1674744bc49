package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// Companion makes a Backend hold everything of a plan but the members: somebody else balances, IPVS that is, and the
// rules do what it cannot: source ranges, refusals, masquerading, session affinity, and telling sources from outside
// from others. A connection that is to be balanced passes on to the node itself, as it is or with a packet mark that
// tells which pool it gets; what balances changes its destination in LOCAL_IN or LOCAL_OUT.
//
// It takes the same table names: changing from one mode to the other replaces the tables (handover.go).
type Companion struct {
	// Caps are the capabilities of whoever balances.
	Caps plan.Caps
	// Mark gives the packet mark for a pool (the one for sources from outside, or the other) of a frontend. All have
	// MarkMask's bits as in MarkBase. 0: none, the pool is told by the packet's destination.
	Mark func(f *plan.Frontend, outside bool) uint32
	// Guarded gives the addresses that are the node's for the sake of balancing only, or are about to be. Packets to
	// them that are for no frontend are refused, as they would meet the node's own servers, and theirs are masqueraded.
	// It is asked when the tables are read for Apply; Guard is for what changes.
	Guarded func() map[netip.Addr]bool
}

// The marks that tell pools. Other marks that packets carry before are lost for the first packet of a connection to
// such a pool.
const (
	MarkBase = 0x5ce00000
	MarkMask = 0xfff00000
	// priorityMasquerade in a packet's priority takes the place of the masquerade bit while the mark tells a pool.
	priorityMasquerade = MarkBase | 0xfffff
)

// companionComment is in the place of tableComment.
var companionComment = tableComment + ", balanced by IPVS"

// Marks are the marks that a companion's tables have, by frontend: for sources from outside, and for others.
type Marks map[plan.Key]struct{ Inside, Outside uint32 }

// ReadMarks is Read, with the marks, and the addresses that are guarded. What a companion reads has pools without
// members.
func (b *Backend) ReadMarks(ctx context.Context) (p *plan.Plan, marks Marks, guarded map[netip.Addr]bool, err error) {
	tables, err := b.read(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	marks, guarded = Marks{}, map[netip.Addr]bool{}
	for _, t := range tables {
		for a := range t.linkRefs.all() {
			guarded[a] = true
		}
		for k, h := range t.frontends {
			m := marks[k]
			m.Inside, m.Outside = h.lanes[inside].mark, h.lanes[outside].mark
			if m.Inside|m.Outside != 0 {
				marks[k] = m
			}
		}
	}
	return raise(tables), marks, guarded, nil
}

// IsForeignTable tells whether Read failed because a table under the name is another's, or of another version or mode. Apply
// replaces such a table.
func IsForeignTable(err error) bool {
	var shape errShape
	return errors.As(err, &shape)
}

func (b *Backend) newTable(f model.Family) *table {
	t := newTable(f, b.conn)
	if b.companion != nil {
		t.companion = b.companion
		t.reset(f)
	}
	return t
}

// comment of the table, which tells what kind it is.
func (s *schema) comment() string {
	if s.companion != nil {
		return companionComment
	}
	return tableComment
}

// companionSide replaces the sets that balancing takes by those that pass connections on.
func (s *schema) companionSide(i side, ss *sideSets) {
	key := ss.frontends.key
	for l := range lanes {
		p, ls := prefix(i, l), &ss.lanes[l]
		ls.balanced = s.add(p+"balanced", key...)
		ls.fwmarks = s.add(p+"fwmarks", key...).mapTo(markField).hostData()
	}
}

// lower gives the elements of a frontend.
func (t *table) lower(f *plan.Frontend, before *held) (*held, error) {
	c := t.companion
	if c == nil {
		return lower(f, before)
	}
	h, err := lowerWith(f, func(p *plan.Pool, l int) (pool, error) { return c.lowerPool(f, p, l) })
	if err == nil && f.Balance != plan.Random && f.Balance != plan.SourceHash {
		h.comment += " " + f.Balance.String()
	}
	return h, err
}

// lowerPool keeps the members that may get connections in the place of slots: hairpins and affinity follow from them.
func (c *Companion) lowerPool(f *plan.Frontend, p *plan.Pool, lane int) (pool, error) {
	// A pool that takes no connections may have members and so a mark.
	out := pool{mark: c.Mark(f, lane == outside)}
	if m := out.mark; m != 0 && (m&MarkMask != MarkBase || m == priorityMasquerade) {
		return pool{}, fmt.Errorf("the mark %#x is not one of those for pools", m)
	}
	switch {
	case p.Verdict == plan.Drop:
		out.sets = droppedBit
		return out, nil
	case p.Verdict == plan.Reject || p.Total() == 0:
		out.sets = rejectedBit
		return out, nil
	case out.mark == 0:
		out.sets = balancedBit
	}
	list := make([]netip.AddrPort, 0, len(p.Endpoints))
	for _, m := range p.Endpoints {
		if m.Weight > 0 {
			list = append(list, m.Addr)
		}
	}
	out.slots = pack(list)
	return out, nil
}

// changeMembers counts hairpins; the members themselves are in nobody's set.
func (t *table) changeMembers(x *tx, now, want packed) {
	for i := range now.len() {
		t.hairpins.change(x, now.at(i).Addr(), -1)
	}
	for i := range want.len() {
		t.hairpins.change(x, want.at(i).Addr(), 1)
	}
}

// changeMark is about the mark of a lane.
func (t *table) changeMark(x *tx, ls *laneSets, key []byte, now, want uint32) {
	if now == want {
		return
	}
	if now != 0 {
		x.del(ls.fwmarks, nfnl.Element{Key: key})
	}
	if want != 0 {
		x.add(ls.fwmarks, nfnl.Element{Key: key, Data: native(want)})
	}
}

// passOn is the place of the picks: what is to be balanced passes, with the mark of its pool if it has one.
func (r ruleWriter) passOn(i side, lane int) []*writer {
	ss := &r.sides[i]
	ls := &ss.lanes[lane]
	var rules []*writer
	if r.bit != 0 {
		hide := r.new()
		if i == byAddress {
			hide.frontend(i).in(ss.split) // others have no mark
		}
		rules = append(rules, hide.need(ls.fwmarks).marked(r.bit).setPriority(priorityMasquerade))
	}
	return append(rules,
		r.new().frontend(i).markFrom(ls.fwmarks).accept(),
		r.new().frontend(i).in(ls.balanced).accept())
}

// companionChains see packets when they have their member.
func (r ruleWriter) companionChains() []chain {
	ours := func(target string) []*writer {
		return []*writer{
			r.new().original(byAddress).in(r.sides[byAddress].frontends).goTo(target),
			r.new().originalDst().in(r.nodePortAddrs).original(byNodePort).in(r.sides[byNodePort].frontends).goTo(target),
		}
	}
	chains := []chain{r.chain("balanced", ours("leave")...)}
	if r.hasAffinity() {
		chains = append(chains, r.chain("balanced_here", ours("remember")...))
	}
	if !r.hasMarks() {
		return chains
	}
	// IPVS is at -98 in LOCAL_OUT, where packets pass once more when they have their member, and at 99 in LOCAL_IN.
	out := r.hook("unmark_output", unix.NF_INET_LOCAL_OUT, -97, r.new().inMarks().goTo("unmark"))
	in := r.hook("unmark_input", unix.NF_INET_LOCAL_IN, 101, r.new().inMarks().goTo("unmark"))
	out.filter, in.filter = true, true
	back := []*writer{r.new().setMark(0)}
	if r.bit != 0 {
		back = append([]*writer{r.new().hasPriority(priorityMasquerade).setPriority(0).setMark(r.bit).accept()}, back...)
	}
	return append(chains, out, in, r.chain("unmark", back...))
}

// tcpUnderWay matches a TCP packet that begins no connection. What comes here is new to conntrack: its entry was
// deleted, to end the connection. IPVS would go on with it.
func (w *writer) tcpUnderWay() *writer {
	const syn = 0x02
	return w.end(
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: w.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: w.reg, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: []byte{0}},
	)
}

func (w *writer) reset() *writer {
	return w.end(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

func (s *schema) hasMarks() bool {
	for i := range sides {
		for l := range lanes {
			if n := s.sides[i].lanes[l].fwmarks; n != nil && n.exists {
				return true
			}
		}
	}
	return false
}

func (w *writer) need(s *set) *writer {
	w.needs = append(w.needs, s)
	return w
}

func (w *writer) accept() *writer { return w.verdict(expr.VerdictAccept, "") }

// markFrom looks the loaded key up and marks the packet with what it finds.
func (w *writer) markFrom(m *set) *writer {
	return w.need(m).end(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: m.name},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *writer) inMarks() *writer {
	return w.end(
		&expr.Meta{Key: expr.MetaKeyMARK, Register: w.reg},
		&expr.Bitwise{SourceRegister: w.reg, DestRegister: w.reg, Len: 4, Mask: native(MarkMask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(MarkBase)},
	)
}

func (w *writer) setMark(v uint32) *writer     { return w.setMeta(expr.MetaKeyMARK, v) }
func (w *writer) setPriority(v uint32) *writer { return w.setMeta(expr.MetaKeyPRIORITY, v) }

func (w *writer) setMeta(k expr.MetaKey, v uint32) *writer {
	return w.end(
		&expr.Immediate{Register: unix.NFT_REG32_00, Data: native(v)},
		&expr.Meta{Key: k, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

func (w *writer) hasPriority(v uint32) *writer {
	return w.end(
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: w.reg},
		&expr.Cmp{Op: expr.CmpOpEq, Register: w.reg, Data: native(v)},
	)
}
