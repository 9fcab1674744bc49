package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/model"
)

// CountConnections adds the open connections to the endpoints that are in count: TCP connections that are established, and flows of other
// protocols with a reply. The kernel leaves out entries that were not translated or have no reply (since Linux 5.18), and the others
// are counted as they arrive: memory does not depend on the size of the table. The kernel works in the calling thread.
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
)

// dump calls onEntry for all entries of the table of which the kernel knows that they were translated and have a reply. The entry is
// valid until onEntry returns.
func dump(ctx context.Context, onEntry func(*entry)) error {
	var e entry
	return receive(ctx, dumpRequest(unix.AF_UNSPEC, statusCounted), func(part []byte) (done bool, err error) { return e.messages(part, onEntry) })
}

// receive sends a request for a dump and calls onPart for each part of the answer, until it is done. The part is valid until onPart
// returns.
func receive(ctx context.Context, request []byte, onPart func([]byte) (done bool, err error)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	timeout := unix.NsecToTimeval(int64(stallTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fmt.Errorf("set the timeout of the netlink socket: %w", err)
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	buffer := make([]byte, bufferSize)
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		}
		if done, err = onPart(buffer[:n]); err != nil {
			return err
		}
	}
	return nil
}

// dumpRequest returns the message that asks for a dump of the entries of a family with these bits in their status; zero: of all.
func dumpRequest(family byte, status uint32) []byte {
	const getConntrack = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET
	native := binary.NativeEndian
	b := native.AppendUint32(nil, 0) // length, below
	b = native.AppendUint16(b, getConntrack)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = native.AppendUint32(b, 1)                                    // sequence number
	b = native.AppendUint32(b, 0)                                    // port: the kernel
	b = append(b, family, unix.NFNETLINK_V0, 0, 0)                   // nfgenmsg
	for _, attribute := range []uint16{attrStatus, attrStatusMask} { // older kernels ignore them, newer ones refuse zero
		if status == 0 {
			break
		}
		b = native.AppendUint16(b, 8)
		b = native.AppendUint16(b, attribute)
		b = binary.BigEndian.AppendUint32(b, status)
	}
	native.PutUint32(b, uint32(len(b)))
	return b
}
