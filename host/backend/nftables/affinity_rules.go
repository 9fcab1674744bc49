package nftables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

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
