package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// learnAffinity leads balanced connections of frontends with affinity to the chain that records their clients. The id of
// their group is put in the packet's priority.
func (r rulesetBuilder) learnAffinity() []*ruleBuilder {
	var rules []*ruleBuilder
	for i := range lookups {
		for _, proto := range protocols {
			w := r.rule().ctProtocol(proto)
			if i == byNodePort {
				w.originalDst().in(r.nodePortAddrs)
			}
			ls := &r.lookups[i]
			rules = append(rules, w.originalKey(i).setPriorityFrom(ls.groups).originalKey(i).vmap(ls.learn))
		}
	}
	return rules
}

// learnChains returns the chains that record an endpoint in each list of the group that has it, so that a client returns
// to its endpoint through any frontend of the Service port, and never to one that the frontend does not have.
func (r rulesetBuilder) learnChains() (chains []chain) {
	lists := slices.Sorted(maps.Keys(r.affinity.endpoints))
	for _, c := range slices.SortedFunc(maps.Keys(r.affinity.learn), func(a, b learnChain) int {
		return cmp.Or(a.room-b.room, cmp.Compare(a.timeout, b.timeout))
	}) {
		inRoom := slices.DeleteFunc(slices.Clone(lists), func(list int) bool {
			own, shared := r.affinity.clients[clientSet{list, c.room}], r.affinity.clients[clientSet{list, sharedRoom}]
			return own == nil || !own.exists || shared == nil
		})
		for _, list := range inRoom {
			chains = append(chains, lazyChain(c.record(list), "", func() []*ruleBuilder { return r.recordClient(c, list) }))
		}
		chains = append(chains, lazyChain(c.String(), fmt.Sprint(inRoom), func() []*ruleBuilder { return r.learnClient(c, inRoom) }))
	}
	return chains
}

func (r rulesetBuilder) learnClient(c learnChain, lists []int) (rules []*ruleBuilder) {
	for _, list := range lists {
		rules = append(rules,
			r.rule().groupID().daddr().dport().setPriorityFrom(r.affinity.endpoints[list]).jump(c.record(list)),
			r.rule().groupOfID().setPriority())
	}
	return append(rules, r.rule().clearGroupID())
}

func (r rulesetBuilder) recordClient(c learnChain, list int) []*ruleBuilder {
	own, shared := r.clientsSet(clientSet{list, c.room}), r.clientsSet(clientSet{list, sharedRoom})
	// When a set is full, its rule ends and the next one is tried.
	return []*ruleBuilder{
		r.rule().client((*ruleBuilder).originalSrc, (*ruleBuilder).groupOfID).change(own, unix.NFT_DYNSET_OP_UPDATE, c.timeout).ret(),
		r.rule().client((*ruleBuilder).originalSrc, (*ruleBuilder).groupOfID).change(shared, unix.NFT_DYNSET_OP_UPDATE, c.timeout).ret(),
		r.rule().groupOfID().change(r.affinity.full, unix.NFT_DYNSET_OP_UPDATE, fullTimeout),
	}
}

// findChains returns the chains that send known clients to their endpoint. A client whose endpoint left is forgotten, so
// that it is recorded with the next one.
func (r rulesetBuilder) findChains() (chains []chain) {
	for _, c := range slices.SortedFunc(maps.Keys(r.affinity.find), func(a, b findChain) int {
		return cmp.Or(a.list-b.list, a.room-b.room)
	}) {
		targets, own, shared := r.targetsSet(c.list), r.clientsSet(c), r.clientsSet(clientSet{c.list, sharedRoom})
		chains = append(chains,
			lazyChain(c.String(), "", func() []*ruleBuilder {
				return []*ruleBuilder{
					r.rule().client((*ruleBuilder).saddr, (*ruleBuilder).groupID).setPriorityFrom(own).gotoChain(c.send()),
					r.rule().client((*ruleBuilder).saddr, (*ruleBuilder).groupID).setPriorityFrom(shared).gotoChain(c.send()),
					r.rule().clearGroupID(),
				}
			}),
			lazyChain(c.send(), "", func() (rules []*ruleBuilder) {
				for _, proto := range protocols {
					rules = append(rules, r.rule().l4proto(proto).groupID().dnat(targets))
				}
				return append(rules,
					r.rule().client((*ruleBuilder).saddr, (*ruleBuilder).groupOfID).change(own, dynsetDelete, 0),
					r.rule().client((*ruleBuilder).saddr, (*ruleBuilder).groupOfID).change(shared, dynsetDelete, 0),
					r.rule().clearGroupID())
			}))
	}
	return chains
}

// setPriorityFrom looks the loaded key up and puts the result, an id, in the packet's priority, where it does no harm for
// a moment: forwarding sets the priority again, and clearGroupID restores the initial one. A lookup keyed by another
// lookup's result would need no such place, but nft 1.0.6 aborts when it lists one.
func (r *ruleBuilder) setPriorityFrom(ids *set) *ruleBuilder {
	r.needs = append(r.needs, ids)
	return r.emit(
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true, SetName: ids.name},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true},
	)
}

// client loads the key of the sets of clients, see schema.clientKey.
func (r *ruleBuilder) client(addr, group func(*ruleBuilder) *ruleBuilder) *ruleBuilder {
	if r.family == model.IPv6 {
		return addr(group(r))
	}
	return group(addr(r))
}

func (r *ruleBuilder) clearGroupID() *ruleBuilder { return r.setMeta(expr.MetaKeyPRIORITY, 0) }

// groupID loads the id in the packet's priority, groupOfID that of its group.
func (r *ruleBuilder) groupID() *ruleBuilder {
	return r.load(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: r.reg}, 4)
}

func (r *ruleBuilder) groupOfID() *ruleBuilder {
	at := r.reg
	r.groupID()
	r.exprs = append(r.exprs, &expr.Bitwise{
		SourceRegister: at, DestRegister: at, Len: 4, Mask: native(^uint32(maxAffinityID)), Xor: native(0),
	})
	return r
}

// setPriority puts the loaded id in the packet's priority.
func (r *ruleBuilder) setPriority() *ruleBuilder {
	return r.emit(&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: unix.NFT_REG32_00, SourceRegister: true})
}

const dynsetDelete = 2 // NFT_DYNSET_OP_DELETE, which golang.org/x/sys/unix lacks

// change adds the loaded key to a set or refreshes it, or deletes it. The data of a map is the id in the packet's
// priority; deleting needs data too, and ignores it.
func (r *ruleBuilder) change(s *set, operation uint32, timeout time.Duration) *ruleBuilder {
	r.needs = append(r.needs, s)
	e := &expr.Dynset{SrcRegKey: unix.NFT_REG32_00, SetName: s.name, Operation: operation, Timeout: timeout}
	if s.data != nil {
		e.SrcRegData = r.reg
		r.groupID()
	}
	return r.emit(e)
}

// vmap looks the loaded key up in a map of verdicts.
func (r *ruleBuilder) vmap(m *set) *ruleBuilder {
	r.needs = append(r.needs, m)
	return r.emit(&expr.Lookup{SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: m.name})
}
