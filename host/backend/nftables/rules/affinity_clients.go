package rules

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"golang.org/x/sys/unix"
)

// settleTime is how long a packet that found a member before a change may take to note its client for it.
const settleTime = 5 * time.Millisecond

// affinityCleanup says whether the affinity of some clients may be out of date.
type affinityCleanup struct {
	loaded       bool      // what the kernel has was just read, and is from who knows when
	endpointLeft bool      // a list has lost a member
	requeueAt    time.Time // look once more then; zero: not
}

// deleteStaleClients deletes the affinity of clients whose member left, and says when to look once more: what was on its
// way when the change came may be noted only now.
func (b *Backend) deleteStaleClients() (time.Duration, error) {
	c, now := &b.cleanup, b.now()
	due := !c.requeueAt.IsZero() && !now.Before(c.requeueAt)
	if c.loaded || c.endpointLeft || due {
		found := false
		for _, t := range b.tables {
			for _, list := range slices.Sorted(maps.Keys(t.affinity)) {
				some, err := t.deleteStaleClients(list)
				if err != nil {
					return 0, err
				}
				found = found || some
			}
		}
		if due {
			c.requeueAt = time.Time{}
		}
		if c.endpointLeft || c.loaded && found {
			c.requeueAt = now.Add(settleTime)
		}
		c.loaded, c.endpointLeft = false, false
	}
	if c.requeueAt.IsZero() {
		return 0, nil
	}
	return max(c.requeueAt.Sub(now), time.Millisecond), nil
}

// deleteStaleClients deletes every entry whose owner has no such member in the list.
func (t *table) deleteStaleClients(n int) (some bool, err error) {
	s := t.affinity[n]
	if !s.exists {
		return false, nil
	}
	list, err := t.dumpSettled(s)
	if err != nil {
		return false, err
	}
	stale := slices.DeleteFunc(list, func(e nfnl.Element) bool { return t.isValidClient(n, e) })
	if len(stale) == 0 {
		return false, nil
	}
	x := &tx{t: t, limit: nfnl.DefaultSendBuffer / 4}
	for _, e := range stale {
		x.del(s, nfnl.Element{Key: e.Key})
		if t.deleteKind == unix.NFT_MSG_DELSETELEM || x.full() {
			if err := t.commitDeletes(x); err != nil {
				return true, err
			}
		}
	}
	err = t.commitDeletes(x)
	if t.deleteKind == msgDestroySetElem && errors.Is(err, unix.EINVAL) {
		// Before Linux 6.3 there is only a delete that fails when the entry has just expired: one by one then.
		t.deleteKind = unix.NFT_MSG_DELSETELEM
		return t.deleteStaleClients(n)
	}
	return true, err
}

func (t *table) commitDeletes(x *tx) error {
	err := x.commit()
	if t.deleteKind == unix.NFT_MSG_DELSETELEM && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// isValidClient tells whether an entry leads to a member of its owner's list.
func (t *table) isValidClient(list int, e nfnl.Element) bool {
	a, ok := t.addrPort(e.Data)
	if !ok || len(e.Key) < t.addr.bytes+4 {
		return false
	}
	w := t.groups.byID[groupIDOf(e.Key[t.addr.bytes:])]
	if w == nil || list >= len(w.lists) {
		return false
	}
	_, ok = slices.BinarySearchFunc(w.lists[list].programmed, a, netip.AddrPort.Compare)
	return ok
}
