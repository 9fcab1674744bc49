package nfnl

import (
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// listenBuffer is room for what other processes write at once. Own writes are filtered out before they take any of it.
const listenBuffer = 1 << 20

// Listener receives nf_tables' notifications.
type Listener struct{ file *os.File }

// Listen subscribes to the notifications of a network namespace, without those of what the socket exclude wrote: a
// thousand elements are a thousand notifications.
func Listen(ns int, exclude *Conn) (*Listener, error) {
	fd, err := open(ns, unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	if err := subscribe(fd, exclude.PortID); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Listener{os.NewFile(uintptr(fd), "nf_tables notifications")}, nil
}

func subscribe(fd int, exclude uint32) error {
	const pid = 12 // offset in struct nlmsghdr; a datagram is about one transaction, so its first message is enough
	swapped := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, exclude))
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
		return fmt.Errorf("join the multicast group NFNLGRP_NFTABLES: %w", err)
	}
	return nil
}

// Stop ends Run.
func (l *Listener) Stop() error { return l.file.SetReadDeadline(time.Unix(1, 0)) }

// Close closes the socket. On a busy node, the kernel takes seconds for that.
func (l *Listener) Close() error { return l.file.Close() }

// SyscallConn returns the socket.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return l.file.SyscallConn() }

// Run calls datagram with what arrives, for Notifications to parse, and overflow when the kernel dropped notifications
// because the buffer was full. It returns after Stop, or when the socket fails.
func (l *Listener) Run(datagram func(b []byte), overflow func()) error {
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
			overflow()
		case rerr != nil:
			return rerr
		default:
			datagram(buf[:n])
		}
	}
}

// Notifications yields the kind (NFT_MSG_*) and body of each of nf_tables' messages in a datagram. A body begins with a
// whole struct nfgenmsg. It stops at a truncated message.
func Notifications(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLMSG_HDRLEN+4 {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN+4 || size > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[4:])
			if typ>>8 == unix.NFNL_SUBSYS_NFTABLES && !yield(typ&0xff, b[unix.NLMSG_HDRLEN:size]) {
				return
			}
			b = b[min(Align(size), len(b)):]
		}
	}
}
