package rules

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/sluice-proxy/sluice/host/backend"
	"golang.org/x/sys/unix"
)

var _ backend.Watcher = (*Backend)(nil)

// listenBuffer is room for what others write at once. Own writes are filtered out before they take any of it.
const listenBuffer = 1 << 20

// listener hears what others write to nf_tables, in this network namespace.
type listener struct {
	file    *os.File
	heard   func(backend.ExternalChange)
	what    map[string]int // of the transaction under way: what was changed, and how often
	count   int
	commits *atomic.Uint32 // of others, heard to their end
	stopped atomic.Bool
}

// Watch implements backend.Watcher. What others write to other tables is looked at and forgotten.
func (b *Backend) Watch(heard func(backend.ExternalChange)) (stop func(), err error) {
	fd, err := inNetns(b.netns, func() (int, error) {
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: watch: open a netlink socket: %w", hint(err))
	}
	if err := listen(fd, b.conn.port); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("nftables: watch: %w", hint(err))
	}
	l := &listener{file: os.NewFile(uintptr(fd), "nf_tables notifications"), heard: heard, what: map[string]int{}, commits: &b.heard}
	b.listener = l
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := l.run(); !l.stopped.Load() {
			b.log.Warn("what others write to nf_tables is no longer heard", "err", err)
		}
	}()
	return func() {
		l.stopped.Store(true)
		l.file.Close()
		<-ended
		b.listener = nil
	}, nil
}

// listen joins the group that notifications go to, without those about what the socket of address own wrote: a
// thousand elements are a thousand of them.
func listen(fd int, own uint32) error {
	const pid = 12 // of struct nlmsghdr; a datagram is about one transaction, so its first message tells
	swapped := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, own))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: pid},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: swapped, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("filter a netlink socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, listenBuffer); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, listenBuffer)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("bind a netlink socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("join the group of notifications: %w", err)
	}
	return nil
}

// run listens until the file is closed.
func (l *listener) run() error {
	raw, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	buf := make([]byte, readSize)
	for {
		var n int
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, _, rerr = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
			return rerr != unix.EAGAIN
		})
		switch {
		case err != nil:
			return err
		case rerr == unix.EINTR:
		case rerr == unix.ENOBUFS:
			l.note("more than could be heard")
			l.end("")
		case rerr != nil:
			return rerr
		default:
			l.take(buf[:n])
		}
	}
}

// take looks at a datagram; it ends early at a message that is cut off.
func (l *listener) take(b []byte) {
	for len(b) >= unix.NLMSG_HDRLEN+4 {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN+4 || size > len(b) {
			return
		}
		typ, body := binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:size]
		switch {
		case typ>>8 != unix.NFNL_SUBSYS_NFTABLES:
		case typ&0xff == unix.NFT_MSG_NEWGEN: // at the end of each transaction
			l.commits.Add(1)
			by := ""
			if pid := attr(body[4:], unix.NFTA_GEN_PROC_PID); pid != nil {
				by = fmt.Sprintf("%s (pid %d)", text(attr(body[4:], unix.NFTA_GEN_PROC_NAME)), number(pid))
			}
			l.end(by)
		default:
			if what := notification(typ&0xff, body); what != "" {
				l.note(what)
			}
		}
		b = b[min(align(size), len(b)):]
	}
}

func (l *listener) note(what string) {
	l.count++
	if len(l.what) < maxKinds || l.what[what] > 0 {
		l.what[what]++
	}
}

// Of what was changed, so many kinds are counted, and so many named.
const (
	maxKinds = 1000
	maxNamed = 4
)

// end tells of a transaction, if any of it was about us.
func (l *listener) end(by string) {
	if l.count == 0 {
		return
	}
	var names []string
	for _, what := range slices.SortedFunc(maps.Keys(l.what), coarseFirst) {
		if n := l.what[what]; n > 1 {
			what = fmt.Sprintf("%s (%d)", what, n)
		}
		names = append(names, what)
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("and more (%d)", more))
	}
	l.heard(backend.ExternalChange{Object: strings.Join(names, ", "), Process: by, Count: l.count})
	l.count = 0
	clear(l.what)
}

// coarseFirst puts tables before chains and sets, and those before what is in them.
func coarseFirst(a, b string) int {
	rank := func(s string) int {
		kind, _, _ := strings.Cut(s, " ")
		return slices.Index([]string{"set", "chain", "table"}, kind)
	}
	return cmp.Or(rank(b)-rank(a), strings.Compare(a, b))
}

// notification says what a message is about, "" when that is not ours.
func notification(kind uint16, body []byte) string {
	var table string
	switch body[0] {
	case unix.NFPROTO_IPV4:
		table = "ip " + tableName
	case unix.NFPROTO_IPV6:
		table = "ip6 " + tableName
	default:
		return ""
	}
	b := body[4:]
	if text(attr(b, unix.NFTA_TABLE_NAME)) != tableName { // the same number for all kinds of objects
		return ""
	}
	switch kind {
	case unix.NFT_MSG_NEWTABLE:
		return "table " + table + " written"
	case unix.NFT_MSG_DELTABLE:
		return "table " + table + " deleted"
	case unix.NFT_MSG_NEWCHAIN:
		return "chain " + table + " " + text(attr(b, unix.NFTA_CHAIN_NAME)) + " written"
	case unix.NFT_MSG_DELCHAIN:
		return "chain " + table + " " + text(attr(b, unix.NFTA_CHAIN_NAME)) + " deleted"
	case unix.NFT_MSG_NEWRULE:
		return "rule written in chain " + table + " " + text(attr(b, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_DELRULE:
		return "rule deleted in chain " + table + " " + text(attr(b, unix.NFTA_RULE_CHAIN))
	case unix.NFT_MSG_NEWSET:
		return "set " + table + " " + text(attr(b, unix.NFTA_SET_NAME)) + " written"
	case unix.NFT_MSG_DELSET:
		return "set " + table + " " + text(attr(b, unix.NFTA_SET_NAME)) + " deleted"
	case unix.NFT_MSG_NEWSETELEM:
		return "element added to set " + table + " " + text(attr(b, unix.NFTA_SET_ELEM_LIST_SET))
	case unix.NFT_MSG_DELSETELEM:
		return "element deleted in set " + table + " " + text(attr(b, unix.NFTA_SET_ELEM_LIST_SET))
	}
	return fmt.Sprintf("something in table %s changed (message type %d)", table, kind)
}

// reckoning is what is known of the generation.
type reckoning struct {
	begun    bool
	distance uint32 // from the transactions that are known to the generation
	doubt    bool   // it had grown at the last look
}

// Moved implements backend.Watcher, from the generation: every transaction raises it by one, and each is either one of
// ours or one that was heard. A transaction that is just being heard looks like one that was not: so twice in a row.
func (b *Backend) Drifted(ctx context.Context) (bool, error) {
	known := b.conn.own + b.heard.Load()
	gen, err := b.Generation(ctx)
	if err != nil {
		return false, err
	}
	r := &b.reckoning
	distance := gen - known
	switch {
	case !r.begun || int32(distance-r.distance) <= 0: // less: a transaction of ours that changed nothing does not count
		*r = reckoning{begun: true, distance: distance}
		return false, nil
	case !r.doubt:
		r.doubt = true
		return false, nil
	}
	*r = reckoning{begun: true, distance: distance}
	return true, nil
}
