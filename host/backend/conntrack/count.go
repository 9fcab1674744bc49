package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// CountConnections adds the open connections to the endpoints that are in count: TCP connections that are established, and flows
// of other protocols with a reply. The kernel leaves out entries that were not translated or have no reply (since Linux 5.18),
// and the others are counted as they arrive: memory does not depend on the size of the table. The kernel works in the calling
// thread.
func (Table) CountConnections(ctx context.Context, count map[model.EndpointKey]uint32) error {
	if err := dump(ctx, func(e *entry) {
		if k, ok := e.open(); ok {
			if n, ok := count[k]; ok {
				count[k] = n + 1
			}
		}
	}); err != nil {
		return fmt.Errorf("conntrack: count connections: %w", err)
	}
	return nil
}

// Bits of a conntrack entry's status (enum ip_conntrack_status).
const (
	statusSeenReply = 1 << 1
	statusDstNAT    = 1 << 5
	statusOffload   = 1 << 14 // in a flowtable

	statusCounted = statusSeenReply | statusDstNAT
)

// open returns the endpoint of an entry if it is an open connection to one.
func (e *entry) open() (model.EndpointKey, bool) {
	established := e.protocol != unix.IPPROTO_TCP || e.tcpState == tcpEstablished
	return model.EndpointKey{Addr: e.replyFrom, Protocol: model.Protocol(e.protocol)}, established && e.status&statusCounted == statusCounted
}

const (
	// bufferSize is the size of the largest message that the kernel fills in a dump.
	bufferSize = 32 << 10
	// stallTimeout bounds the wait for the next part of a dump.
	stallTimeout = 5 * time.Second
	// contextInterval is how often a wait looks whether its context has ended.
	contextInterval = 100 * time.Millisecond
)

// dump calls onEntry for all entries of the table of which the kernel knows that they were translated and have a reply. The entry
// is valid until onEntry returns.
func dump(ctx context.Context, onEntry func(*entry)) error {
	var e entry
	return receive(ctx, dumpRequest(unix.AF_UNSPEC, statusCounted, statusCounted), func(part []byte) (done bool, err error) { return e.messages(part, onEntry) })
}

// receive sends a request for a dump and calls onPart for each part of the answer, until it is done. The part is valid until
// onPart returns.
func receive(ctx context.Context, request []byte, onPart func([]byte) (done bool, err error)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	return receiveParts(ctx, fd, onPart)
}

// receiveParts receives the answer to a request.
func receiveParts(ctx context.Context, fd int, onPart func([]byte) (done bool, err error)) error {
	timeout := unix.NsecToTimeval(int64(contextInterval))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set the timeout of the socket: %w", err)
	}
	buffer := make([]byte, bufferSize)
	waited := time.Duration(0)
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && waited < stallTimeout:
			waited += contextInterval
			continue
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		}
		waited = 0
		if done, err = onPart(buffer[:n]); err != nil {
			return err
		}
	}
	return nil
}

// dumpRequest returns the message that asks for a dump of the entries of a family whose status has these bits in a mask; mask
// zero: of all.
func dumpRequest(family byte, status, mask uint32) []byte {
	const getConntrack = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	native := binary.NativeEndian
	b := native.AppendUint32(nil, 0) // length, below
	b = native.AppendUint16(b, getConntrack)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = native.AppendUint32(b, 1)                  // sequence number
	b = native.AppendUint32(b, 0)                  // port: the kernel
	b = append(b, family, unix.NFNETLINK_V0, 0, 0) // nfgenmsg
	if mask != 0 {                                 // older kernels ignore the attributes, newer ones refuse a mask of zero
		b = appendAttr(b, attrStatus, binary.BigEndian.AppendUint32(nil, status))
		b = appendAttr(b, attrStatusMask, binary.BigEndian.AppendUint32(nil, mask))
	}
	native.PutUint32(b, uint32(len(b)))
	return b
}
