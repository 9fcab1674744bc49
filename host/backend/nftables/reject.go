package nftables

import (
	"errors"
	"iter"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// rejectName is the name of the reject tables, one per family. After a switch from mode ipvs, VIPs stay local for their IPVS
// connections, but the rules that guarded them are gone. The reject tables reject new connections to them that are not for IPVS,
// which would otherwise reach the node's own sockets.
const rejectName = "sluice-reject"

// rejectPriority runs after IPVS (98 and 99), which does not return the packets that it handles.
const rejectPriority = 101

// SetRejected makes the reject tables reject new connections to exactly these addresses. A table without addresses is deleted.
func SetRejected(netns int, addrs []netip.Addr) error {
	return withCompanions(netns, rejectName, func(both []*companion) error {
		for _, t := range both {
			if err := t.reject(slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return model.FamilyOf(a) != t.family })); err != nil {
				return err
			}
		}
		return nil
	})
}

// reject makes the table contain exactly the given addresses.
func (t *companion) reject(want []netip.Addr) error {
	if len(want) == 0 {
		out := nfnl.NewBatch(t.conn)
		if err := t.deleteIfExists(out); err != nil {
			return err
		}
		return out.Commit()
	}
	s := &set{name: "addrs", key: []field{ipv4Field}, exists: true}
	if t.family == model.IPv6 {
		s.key[0] = ipv6Field
	}
	exists, err := t.exists()
	if err == nil && !exists {
		err = t.createReject(s)
	}
	if err != nil {
		return err
	}
	stale := map[netip.Addr]bool{}
	err = t.eachList(s, func(list iter.Seq[[]byte]) {
		for b := range list {
			if a, ok := netip.AddrFromSlice(nfnl.DecodeElement(b).Key); ok {
				stale[a] = true
			}
		}
	})
	if err != nil {
		return err
	}
	var add, del []nfnl.Element
	for _, a := range want {
		if !stale[a] {
			add = append(add, nfnl.Element{Key: a.AsSlice()})
		}
		delete(stale, a)
	}
	for a := range stale {
		del = append(del, nfnl.Element{Key: a.AsSlice()})
	}
	return errors.Join(t.send(unix.NFT_MSG_NEWSETELEM, s, "add", add), t.send(unix.NFT_MSG_DELSETELEM, s, "delete", del))
}

// send adds or deletes elements, in transactions that fit any socket buffer.
func (t *companion) send(kind uint16, s *set, verb string, elements []nfnl.Element) error {
	for part := range slices.Chunk(elements, nfnl.MaxListElements) {
		var list nfnl.ElementList
		for _, e := range part {
			list.Add(e, "")
		}
		out := nfnl.NewBatch(t.conn)
		out.PutElements(kind, t.Table, s.name, &list, verb)
		if err := out.Commit(); err != nil {
			return err
		}
	}
	return nil
}

func (t *companion) createReject(s *set) error {
	out := nfnl.NewBatch(t.conn)
	out.NewTable(unix.NLM_F_EXCL, t.Table, 0, "")
	t.newSet(out, s, 1)
	icmp := byte(unix.IPPROTO_ICMP)
	if t.family == model.IPv6 {
		icmp = unix.IPPROTO_ICMPV6
	}
	// Only what is new to conntrack: replies to connections that the node itself opened from such an address pass.
	match := func() *ruleBuilder { return newRule(t.family).daddr().in(s).ctNew() }
	err := t.putChain(out, chain{name: "input", hook: unix.NF_INET_LOCAL_IN, priority: rejectPriority, filter: true, rules: []*ruleBuilder{
		match().l4proto(unix.IPPROTO_TCP).tcpReset(), match().l4protoNot(icmp).reject(),
	}})
	if err != nil {
		return err
	}
	return out.Commit()
}
