package nfnl

import (
	"encoding/binary"
	"fmt"

	"github.com/sluice-proxy/sluice/host/util/netns"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to nf_tables. The kernel processes a request before Send returns, so that receiving never
// has to wait. A Conn is not safe for concurrent use.
type Conn struct {
	// Transport carries the datagrams. Tests replace it.
	Transport Transport
	// MaxTxBytes bounds the size of a transaction: the send buffer that the kernel granted.
	MaxTxBytes int
	// MaxReplies is how many messages that the kernel sends one by one fit the receive buffer. Each takes a page or more.
	MaxReplies int
	// PortID is the socket's address. Notifications carry that of the socket that wrote.
	PortID uint32
	// Commits counts the transactions that are known to be committed.
	Commits uint32
	// AllowInconsistent makes Dump ignore writes during the dump.
	AllowInconsistent bool
	// Interrupted ends a Dump with its error, if it returns one; nil: never. It is called for each reply. The Conn then has
	// replies that were not received, and can only be closed.
	Interrupted func() error
	Pacer       Pacer

	fd       int
	seq      uint32
	readBuf  []byte
	batchBuf []byte
	spareBuf []byte    // the other of the two that CommitLater takes in turn
	underWay *underWay // of CommitLater; nil: none
}

// Transport carries datagrams to nf_tables and back.
type Transport interface {
	Send(b []byte) error
	// Receive copies the next datagram into buf and returns its length, or EAGAIN if there is none.
	Receive(buf []byte) (int, error)
}

// socket is a netlink socket's file descriptor.
type socket int

func (fd socket) Send(b []byte) error {
	return unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (fd socket) Receive(buf []byte) (int, error) {
	n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
	return n, err
}

// DefaultSendBuffer is the size of the send buffer to ask for, in bytes.
const DefaultSendBuffer = 1 << 20

// readSize exceeds what the kernel puts in one datagram of a dump, 32 KiB. With small reads it makes small datagrams, and
// dumping a map is quadratic in their number.
const readSize = 64 << 10

// New returns a Conn over a transport of the caller's.
func New(t Transport) *Conn {
	return &Conn{fd: -1, Transport: t, readBuf: make([]byte, readSize), MaxTxBytes: DefaultSendBuffer, MaxReplies: 8}
}

// Open opens a socket in the network namespace of a file descriptor (zero is the current one), with a send buffer of
// sendBuffer bytes or what the kernel grants.
func Open(ns, sendBuffer int) (*Conn, error) {
	fd, err := open(ns, 0)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	c := New(socket(fd))
	c.fd = fd
	if err := c.setup(sendBuffer); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return c, nil
}

// OpenIsolated opens a Conn to a new network namespace, which lives as long as the Conn.
func OpenIsolated() (c *Conn, err error) {
	err = netns.DoInNew(func() (err error) {
		c, err = Open(0, DefaultSendBuffer)
		return err
	})
	return c, err
}

// open opens a socket in a network namespace.
func open(ns, flags int) (fd int, err error) {
	err = netns.Do(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_NETFILTER)
		return err
	})
	return fd, err
}

func (c *Conn) setup(sendBuffer int) error {
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("bind a netlink socket: %w", err)
	}
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		return fmt.Errorf("read a netlink socket's address: %w", err)
	}
	c.PortID = name.(*unix.SockaddrNetlink).Pid
	// Otherwise every error carries a copy of the message that failed, which can fill the receive buffer.
	if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return fmt.Errorf("set NETLINK_CAP_ACK: %w", err)
	}
	_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	receiveBuffer, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return fmt.Errorf("read the socket's receive buffer: %w", err)
	}
	c.MaxReplies = max(receiveBuffer/(16<<10), 8)
	return c.setSendBuffer(sendBuffer)
}

// setSendBuffer asks for a send buffer and records what the kernel granted: without CAP_NET_ADMIN in the initial user
// namespace at most net.core.wmem_max.
func (c *Conn) setSendBuffer(want int) error {
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, want); err != nil {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, want); err != nil {
			return fmt.Errorf("set the socket's send buffer: %w", err)
		}
	}
	got, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("read the socket's send buffer: %w", err)
	}
	c.MaxTxBytes = min(got, 2*want) - 64 // the kernel keeps 32 bytes of it, and doubles what it is asked for
	return nil
}

// Close closes the socket. It may be called again, even if the number of the file descriptor is in use again.
func (c *Conn) Close() error {
	fd := c.fd
	if fd < 0 {
		return nil
	}
	c.fd, c.Transport = -1, socket(-1)
	return unix.Close(fd)
}

// NextSeq returns the sequence number for the next message.
func (c *Conn) NextSeq() uint32 {
	c.seq++
	return c.seq
}

// Send sends messages, after discarding replies that earlier requests may have left. It returns the error of Await, too.
func (c *Conn) Send(b []byte) error {
	if err := c.Await(); err != nil {
		return err
	}
	c.drain()
	return c.send(b)
}

func (c *Conn) send(b []byte) error {
	for {
		if err := c.Transport.Send(b); err != unix.EINTR {
			return err
		}
	}
}

// Receive calls f with each message that has arrived, until there are no more or f returns stop.
func (c *Conn) Receive(f func(typ, flags uint16, seq uint32, body []byte) (stop bool)) error {
	for {
		n, err := c.Transport.Receive(c.readBuf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return err
		}
		for b := c.readBuf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return fmt.Errorf("malformed netlink message of %d bytes", size)
			}
			typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
			if f(typ, flags, binary.NativeEndian.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]) {
				return nil
			}
			b = b[min(Align(size), len(b)):]
		}
	}
}

func (c *Conn) drain() {
	for {
		if err := c.Receive(func(uint16, uint16, uint32, []byte) bool { return false }); err == nil {
			return
		}
	}
}
