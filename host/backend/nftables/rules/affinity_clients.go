package rules

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"golang.org/x/sys/unix"
)

// settleTime is how long a packet that was balanced before a change may take to record its client.
const settleTime = 5 * time.Millisecond

// affinityCleanup is what is known about clients recorded for endpoints that left.
type affinityCleanup struct {
	loaded       bool      // the tables were just read, so anything may be out of date
	endpointLeft bool      // a list lost an endpoint
	requeueAt    time.Time // when to check again; zero: never
}

// deleteStaleClients deletes clients recorded for endpoints that left, and returns when to check again: packets that
// were on their way during the change may be recorded only now.
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

// deleteStaleClients deletes the clients whose group has no such endpoint in the list.
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
		// Linux before 6.3 has only a delete that fails if the entry just expired, so clients are deleted one by one.
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

// isValidClient reports whether a client is recorded for an endpoint of its group's list.
func (t *table) isValidClient(list int, e nfnl.Element) bool {
	a, ok := t.addrPort(e.Data)
	if !ok || len(e.Key) < t.addr.bytes+4 {
		return false
	}
	return t.groups.has(affinityFind{list, groupIDOf(e.Key[t.addr.bytes:])}, a)
}
