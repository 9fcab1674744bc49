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

// settle is how long a packet that found a member before a change may take to note its client for it.
const settle = 5 * time.Millisecond

// clients says whether the affinity of some clients may be out of date.
type clients struct {
	adopted bool      // what the kernel has was just read, and is from who knows when
	check   bool      // a list has lost a member
	again   time.Time // look once more then; zero: not
}

// forgetClients deletes the affinity of clients whose member left, and says when to look once more: what was on its
// way when the change came may be noted only now.
func (b *Backend) forgetClients() (time.Duration, error) {
	c, now := &b.clients, b.now()
	due := !c.again.IsZero() && !now.Before(c.again)
	if c.adopted || c.check || due {
		found := false
		for _, t := range b.tables {
			for _, list := range slices.Sorted(maps.Keys(t.affinity)) {
				some, err := t.forgetClients(list)
				if err != nil {
					return 0, err
				}
				found = found || some
			}
		}
		if due {
			c.again = time.Time{}
		}
		if c.check || c.adopted && found {
			c.again = now.Add(settle)
		}
		c.adopted, c.check = false, false
	}
	if c.again.IsZero() {
		return 0, nil
	}
	return max(c.again.Sub(now), time.Millisecond), nil
}

// forgetClients deletes every entry whose owner has no such member in the list.
func (t *table) forgetClients(n int) (some bool, err error) {
	s := t.affinity[n]
	if !s.exists {
		return false, nil
	}
	list, err := t.dumpSettled(s)
	if err != nil {
		return false, err
	}
	stale := slices.DeleteFunc(list, func(e nfnl.Element) bool { return t.validClient(n, e) })
	if len(stale) == 0 {
		return false, nil
	}
	x := &tx{t: t, limit: nfnl.DefaultSendBuffer / 4}
	for _, e := range stale {
		x.del(s, nfnl.Element{Key: e.Key})
		if t.forget == unix.NFT_MSG_DELSETELEM || x.full() {
			if err := t.commitClients(x); err != nil {
				return true, err
			}
		}
	}
	err = t.commitClients(x)
	if t.forget == msgDestroySetElem && errors.Is(err, unix.EINVAL) {
		// Before Linux 6.3 there is only a delete that fails when the entry has just expired: one by one then.
		t.forget = unix.NFT_MSG_DELSETELEM
		return t.forgetClients(n)
	}
	return true, err
}

func (t *table) commitClients(x *tx) error {
	err := x.commit()
	if t.forget == unix.NFT_MSG_DELSETELEM && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// validClient tells whether an entry leads to a member of its owner's list.
func (t *table) validClient(list int, e nfnl.Element) bool {
	a, ok := t.addrPort(e.Data)
	if !ok || len(e.Key) < t.addr.bytes+4 {
		return false
	}
	w := t.owners.byID[idOf(e.Key[t.addr.bytes:])]
	if w == nil || list >= len(w.lists) {
		return false
	}
	_, ok = slices.BinarySearchFunc(w.lists[list].inKernel, a, netip.AddrPort.Compare)
	return ok
}
