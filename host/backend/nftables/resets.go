package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

const (
	// resetsSize bounds the connections of a family that are remembered. See the README for the memory that one takes.
	resetsSize = 1 << 16
	// resetTimeout is for how long a connection is remembered whose client sends nothing: the default of
	// conntrack.tcpEstablishedTimeout, for which its entry would have been kept.
	resetTimeout = 24 * time.Hour
	// answeredTimeout is for how long a connection is remembered after its last packet that was answered with RST. An RST can be
	// lost, and TCP repeats a packet within TCP_RTO_MAX, 2 minutes.
	answeredTimeout = 2 * time.Minute
	// resetsGC is how often the kernel looks for expired elements.
	resetsGC = 10 * time.Second
	// resetsPerTx is how many connections one transaction adds: one message, whose transaction takes some 2 ms.
	resetsPerTx = 500
	// resetTries is how often a table is looked for while another one replaces it.
	resetTries = 3
)

// newResetsSet returns the set of connections whose conntrack entries were deleted in order to end them. Conntrack takes the next
// packet of such a connection for the first one of a new connection (net.netfilter.nf_conntrack_tcp_loose), as it takes those of
// all connections after its table was flushed, and only these are to be reset.
func newResetsSet(s *schema) *set {
	n := s.addSet(resetsName, s.addr, portField, s.addr, portField).flag(unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT)
	n.size, n.gc = resetsSize, resetsGC
	return n
}

// resetChain answers a packet of a connection in the set. A client that has begun another connection with the same addresses
// takes it off the set.
func (r rulesetBuilder) resetChain() chain {
	return r.chain(chainReset,
		r.rule().tcpFlags(tcpSYN, tcpSYN).connection().change(r.resets, dynsetDelete, 0).ret(),
		r.rule().connection().change(r.resets, unix.NFT_DYNSET_OP_UPDATE, answeredTimeout),
		r.rule().l4proto(unix.IPPROTO_TCP).tcpReset())
}

var _ backend.Resetter = (*Backend)(nil)

// ResetTCP implements backend.Resetter. It returns for how many connections there is no room, or no table. A packet that begins a
// new connection is not answered with RST.
func (b *Backend) ResetTCP(ctx context.Context, list []plan.Connection) (left int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		family := make([]plan.Connection, 0, len(list))
		for _, c := range list {
			if model.FamilyOf(c.Frontend.Addr()) == f {
				family = append(family, c)
			}
		}
		for chunk := range slices.Chunk(family, resetsPerTx) {
			if err := ctx.Err(); err != nil {
				return len(list), fmt.Errorf("nftables: remember connections to reset: %w", err)
			}
			ok, err := addResets(b.conn, f, chunk)
			if err != nil {
				return len(list), err
			}
			if !ok {
				left += len(chunk)
			}
		}
	}
	return left, nil
}

// addResets adds connections of a family to the table that forwards, and reports whether it has room for them.
//
// While a table is replaced, two can forward, and the next packet may pass either. The one under tableName is written first: if
// its successor does not exist afterwards, it copies the connections from there. If neither exists, one was about to be renamed.
func addResets(conn *nfnl.Conn, f model.Family, list []plan.Connection) (ok bool, err error) {
	var elements nfnl.ElementList
	for _, c := range list {
		elements.Add(nfnl.Element{Key: connectionKey(c), Timeout: resetTimeout}, "")
	}
	for range resetTries {
		written := false
		for _, name := range []string{tableName, handoverName} {
			out := nfnl.NewBatch(conn)
			out.PutElements(unix.NFT_MSG_NEWSETELEM, nfnl.Table{Family: nfproto(f), Name: name}, resetsName, &elements, "add")
			refused, err := out.CommitUnless(unix.ENOENT, unix.ENFILE)
			if err != nil {
				return false, err
			}
			for _, errno := range refused {
				if errno == unix.ENFILE {
					return false, nil
				}
			}
			written = written || len(refused) == 0
		}
		if written {
			return true, nil
		}
	}
	return false, nil
}

// connectionKey returns the key of a connection in the set of resets.
func connectionKey(c plan.Connection) (key []byte) {
	for _, a := range []struct {
		addr []byte
		port uint16
	}{{c.Client.Addr().AsSlice(), c.Client.Port()}, {c.Frontend.Addr().AsSlice(), c.Frontend.Port()}} {
		key = append(append(key, a.addr...), byte(a.port>>8), byte(a.port), 0, 0)
	}
	return key
}

// carryResets copies the connections to reset from the table at from to its successor t, with what remains of their timeouts.
// ResetTCP writes to both of them already.
func (b *Backend) carryResets(ctx context.Context, t *table, from *tableState) error {
	if !t.resets.exists {
		return nil
	}
	var list []nfnl.Element
	_, err := b.readConsistent(ctx, func() (err error) {
		old := newTable(t.family, t.conn, t.balancing, b.limits)
		old.Name, list = from.name, nil
		if _, err := old.listSets(old.find); err != nil || !old.resets.exists { // whatever else it has
			return err
		}
		list, err = old.dumpSettled(old.resets)
		return err
	})
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e nfnl.Element) bool { return e.Expires <= 0 })
	for chunk := range slices.Chunk(list, resetsPerTx) {
		var elements nfnl.ElementList
		for _, e := range chunk {
			elements.Add(nfnl.Element{Key: e.Key, Timeout: max(e.Timeout, e.Expires), Expires: e.Expires}, "")
		}
		out := nfnl.NewBatch(t.conn)
		out.PutElements(unix.NFT_MSG_NEWSETELEM, t.Table, resetsName, &elements, "copy")
		t.stats.messages += out.Count
		t.stats.elements += out.Elements
		if err := out.Commit(); err != nil && !errors.Is(err, unix.ENFILE) {
			return err
		}
	}
	return nil
}
