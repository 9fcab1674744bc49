package nftables

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

var noElements = &elements{}

// change writes into x what leads from a frontend's current elements to the wanted ones; nil is none. It commits when
// the transaction is full, in an order in which no connection finds a frontend without slots.
func (t *table) change(x *tx, k plan.Key, now, want *elements) error {
	x.endMove()
	defer x.endMove()
	if now == nil {
		now = noElements
	}
	deleted := want == nil
	if deleted {
		want = noElements
		x.owner = now.owner()
	} else {
		x.owner = want.owner()
	}
	if err := t.changeCounted(x, k.Protocol, now.counted, want.counted); err != nil {
		return err
	}
	if err := t.enter(x, want.entered, 1); err != nil {
		return err
	}
	key := frontendKey(make([]byte, 0, 64), k)
	slots := func(has bool) error {
		for l := range scopes {
			if has == (want.scopes[l].slots.len() > 0) {
				if err := t.balancing.changeEndpoints(x, &t.lookups[lookupOf(k)].scopes[l], key, now.scopes[l].slots, want.scopes[l].slots); err != nil {
					return err
				}
			}
		}
		return nil
	}
	// Slots are added before a frontend is forwarded, and deleted after it no longer is.
	if err := slots(true); err != nil {
		return err
	}
	t.changeEntry(x, k, key, now, want)
	if err := slots(false); err != nil {
		return err
	}
	if err := t.enter(x, now.entered, -1); err != nil {
		return err
	}
	if deleted {
		delete(t.frontends, k)
	} else {
		t.frontends[k] = want
	}
	return nil
}

// changeEntry changes everything except slots.
func (t *table) changeEntry(x *tx, k plan.Key, key []byte, now, want *elements) {
	ss := &t.lookups[lookupOf(k)]
	for l := range scopes {
		ls := &ss.scopes[l]
		had, has := &now.scopes[l], &want.scopes[l]
		t.balancing.changePool(x, ls, key, had, has)
		x.toggle(ls.rejected, key, had.sets&rejectedBit != 0, has.sets&rejectedBit != 0)
		x.toggle(ls.dropped, key, had.sets&droppedBit != 0, has.sets&droppedBit != 0)
	}
	x.toggle(ss.split, key, now.split, want.split)
	if want.retried {
		t.need(t.retries)
	}
	x.toggle(ss.retried, key, now.retried, want.retried)
	x.toggle(ss.longLived, key, now.longLived, want.longLived)
	t.longLived += countTrue(want.longLived) - countTrue(now.longLived)
	for m := plan.MasqueradeOutside; m <= plan.MasqueradeFromNode; m++ {
		x.toggle(ss.masq[m], key, now.masq&(1<<m) != 0, want.masq&(1<<m) != 0)
	}
	changeList(x, now.groups, want.groups, func(id affinityID) (*set, []nfnl.Element) {
		return ss.groups, []nfnl.Element{{Key: key, Data: id.bytes()}}
	})
	changeList(x, now.learn, want.learn, func(c learnChain) (*set, []nfnl.Element) {
		return ss.learn, []nfnl.Element{{Key: key, Jump: c.String()}}
	})
	for l := range scopes {
		changeList(x, now.scopes[l].find, want.scopes[l].find, func(c findChain) (*set, []nfnl.Element) {
			return ss.scopes[l].find, []nfnl.Element{{Key: key, Jump: c.String()}}
		})
	}
	t.changeRanges(x, ss, key, now, want)
	if now.listed && (!want.listed || now.comment != want.comment) {
		x.del(ss.frontends, nfnl.Element{Key: key})
	}
	if want.listed && (!now.listed || now.comment != want.comment) {
		x.add(ss.frontends, nfnl.Element{Key: key, Comment: want.comment})
	}
	t.refer(x, k, now, -1)
	t.refer(x, k, want, 1)
	t.countChains(now, -1)
	t.countChains(want, 1)
}

// refer counts the references of a frontend to its address.
func (t *table) refer(x *tx, k plan.Key, h *elements, by int32) {
	if !h.listed || k.IsNodePort() {
		return
	}
	switch _, kind, _, ok := parseComment(h.comment, k.Protocol); {
	case ok && kind == plan.ClusterIP:
		t.clusterAddrs.add(x, k.Addr, by)
	case ok:
		t.otherAddrs.add(x, k.Addr, by)
	}
}

func (t *table) changeRanges(x *tx, ss *lookupSets, key []byte, now, want *elements) {
	changeList(x, now.ranges, want.ranges, func(p netip.Prefix) (*set, []nfnl.Element) {
		return ss.ranges[p.Bits()], []nfnl.Element{{Key: appendAddr(slices.Clone(key), p.Addr())}}
	})
	x.toggle(ss.sourceRanged, key, now.sourceRanged, want.sourceRanged)
	x.toggle(ss.uncommon, key, now.uncommon, want.uncommon)
}

func countTrue(b bool) int {
	if b {
		return 1
	}
	return 0
}
