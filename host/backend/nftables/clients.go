package nftables

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// settle is how long a packet that found a member before a change may take to note its client for it.
const settle = 5 * time.Millisecond

// clients says whether the affinity of some clients may be out of date.
type clients struct {
	check bool      // now
	again time.Time // and once more then; zero: not
}

// losesClients tells whether a change may leave clients with a member that is theirs no longer.
func losesClients(now, want *held) bool {
	if len(now.affine) == 0 {
		return false
	}
	if want == nil || len(want.affine) == 0 {
		return true
	}
	for l := range lanes {
		after := membersOf(want.lanes[l].slots)
		for _, m := range membersOf(now.lanes[l].slots) {
			_, ok := slices.BinarySearchFunc(after, m.Addr, func(m plan.Member, a netip.AddrPort) int { return m.Addr.Compare(a) })
			if !ok {
				return true
			}
		}
	}
	return false
}

// forgetClients deletes the affinity of clients whose member left, and says when to look once more: what was on its
// way when the change came may be noted only now.
func (b *Backend) forgetClients() (time.Duration, error) {
	c, now := &b.clients, b.now()
	second := !c.again.IsZero() && !now.Before(c.again)
	if c.check || second {
		found := 0
		for _, t := range b.tables {
			n, err := t.forgetClients()
			if err != nil {
				return 0, err
			}
			found += n
		}
		switch {
		case c.check && b.hasAffinity():
			c.again = now.Add(settle)
		case second:
			c.again = time.Time{}
		}
		c.check = false
	}
	if c.again.IsZero() {
		return 0, nil
	}
	return max(c.again.Sub(now), time.Millisecond), nil
}

func (b *Backend) hasAffinity() bool {
	return slices.ContainsFunc(b.tables[:], func(t *table) bool { return t.affinity.exists })
}

// forgetClients deletes every entry that no frontend stands behind.
func (t *table) forgetClients() (int, error) {
	if !t.affinity.exists {
		return 0, nil
	}
	list, err := t.dumpElements(t.affinity)
	if err != nil {
		return 0, err
	}
	stale := slices.DeleteFunc(list, t.validClient)
	if len(stale) == 0 {
		return 0, nil
	}
	x := &tx{t: t, limit: defaultSendBuffer / 4}
	for _, e := range stale {
		x.del(t.affinity, e)
		if t.forget == unix.NFT_MSG_DELSETELEM || x.full() {
			if err := t.commitClients(x); err != nil {
				return 0, err
			}
		}
	}
	err = t.commitClients(x)
	if t.forget == msgDestroySetElem && errors.Is(err, unix.EINVAL) {
		// Before Linux 6.3 there is only a delete that fails when the entry has just expired: one by one then.
		t.forget = unix.NFT_MSG_DELSETELEM
		return t.forgetClients()
	}
	return len(stale), err
}

func (t *table) commitClients(x *tx) error {
	err := x.commit()
	if t.forget == unix.NFT_MSG_DELSETELEM && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// validClient tells whether an entry leads to a member of a frontend with affinity.
func (t *table) validClient(e element) bool {
	n := t.addr.bytes
	member, ok := t.addrPort(e.data)
	if len(e.key) < 2*n+8 || !ok {
		return false
	}
	key := e.key[n:]
	addr, _ := netip.AddrFromSlice(key[:n])
	k := plan.Key{Addr: addr, Port: binary.BigEndian.Uint16(key[n+4:]), Protocol: protocol(key[n])}
	h := t.frontends[k]
	if h == nil && slices.Contains(t.globals.nodePortAddrs, addr) {
		k.Addr = netip.IPv4Unspecified()
		if n == 16 {
			k.Addr = netip.IPv6Unspecified()
		}
		h = t.frontends[k]
	}
	return h != nil && len(h.affine) > 0 && h.holds(member)
}
