package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket to nf_tables. Its requests are answered before send returns: the kernel works on them in
// the caller's own time, so receiving never has to wait.
type socket struct {
	fd   int
	port uint32 // its address, which the kernel puts into notifications of what it wrote
	wire transport
	seq  uint32
	own  uint32 // transactions committed, as far as is known
	sent int    // bytes that one transaction may have
	pace pace
	// answers is how many messages that the kernel sends one by one fit the receive buffer; each takes a page or more.
	answers int
	buf     []byte

	lenient bool   // take dumps although somebody wrote meanwhile
	scratch []byte // for transactions
	fault   *fault // for tests
}

// transport carries datagrams to nf_tables and back. Tests put something between.
type transport interface {
	send(b []byte) error
	// receive gives the next datagram that has arrived, EAGAIN when there is none.
	receive(buf []byte) (int, error)
}

// kernel is a netlink socket's file descriptor.
type kernel int

func (fd kernel) send(b []byte) error {
	return unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (fd kernel) receive(buf []byte) (int, error) {
	n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT)
	return n, err
}

// fault makes a message of a transaction fail.
type fault struct {
	after int  // messages from now
	lost  bool // not the message but its answer
	fired bool
}

// hit tells whether the fault is in a batch; if so it damages the message that it is about.
func (f *fault) hit(b []byte) bool {
	for at := 0; at+unix.NLMSG_HDRLEN <= len(b); at += align(int(binary.NativeEndian.Uint32(b[at:]))) {
		if typ := binary.NativeEndian.Uint16(b[at+4:]); typ == unix.NFNL_MSG_BATCH_BEGIN || typ == unix.NFNL_MSG_BATCH_END {
			continue
		}
		if f.after--; f.after != 0 {
			continue
		}
		f.fired = true
		if !f.lost {
			b[at+4] = 0xff // no such message
		}
	}
	return f.fired && f.after <= 0
}

// readSize is larger than what the kernel puts in one datagram of a dump, 32 KiB; with small reads it makes small
// datagrams, and dumping a map is quadratic in their number.
const readSize = 64 << 10

// errLost means that the kernel's answers did not all arrive: a transaction may or may not have been committed.
var errLost = errors.New("the kernel's answer was lost, so the state is unknown")

func openSocket(netns, want int) (*socket, error) {
	fd, err := inNetns(netns, func() (int, error) {
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	s := &socket{fd: fd, wire: kernel(fd), buf: make([]byte, readSize)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind a netlink socket: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("read a netlink socket's address: %w", err)
	}
	s.port = name.(*unix.SockaddrNetlink).Pid
	// Without it every error carries a copy of the message that failed, which can fill the read buffer.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set NETLINK_CAP_ACK: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20); err != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
	}
	received, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("read the socket's receive buffer: %w", err)
	}
	s.answers = max(received/(16<<10), 8)
	if err := s.grow(want); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// grow asks for room to send want bytes at once and notes what was really granted: without CAP_NET_ADMIN in the first
// user namespace, no more than net.core.wmem_max.
func (s *socket) grow(want int) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, want); err != nil {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, want); err != nil {
			return fmt.Errorf("set the socket's send buffer: %w", err)
		}
	}
	got, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("read the socket's send buffer: %w", err)
	}
	s.sent = min(got, 2*want) - 64 // the kernel keeps 32 bytes of it, and doubles what it is asked for
	return nil
}

// close may be called again; whoever has the number of the file descriptor then is safe.
func (s *socket) close() error {
	fd := s.fd
	if fd < 0 {
		return nil
	}
	s.fd, s.wire = -1, kernel(-1)
	return unix.Close(fd)
}

func (s *socket) send(b []byte) error {
	for {
		if err := s.wire.send(b); err != unix.EINTR {
			return err
		}
	}
}

// receive gives the next message of what has arrived to each, until nothing more is there or each says stop.
func (s *socket) receive(each func(typ, flags uint16, seq uint32, body []byte) (stop bool)) error {
	for {
		n, err := s.wire.receive(s.buf)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return err
		}
		for b := s.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return fmt.Errorf("malformed netlink message of %d bytes", size)
			}
			typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
			if each(typ, flags, binary.NativeEndian.Uint32(b[8:]), b[unix.NLMSG_HDRLEN:size]) {
				return nil
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// drain throws away what an earlier request may have left.
func (s *socket) drain() {
	for {
		if err := s.receive(func(uint16, uint16, uint32, []byte) bool { return false }); err == nil {
			return
		}
	}
}

// failure is a message that the kernel refused.
type failure struct {
	seq   uint32
	errno unix.Errno
	why   string // the kernel's extended text, mostly empty
}

// transact sends a batch whose last real message has sequence last and asks for an acknowledgement. It returns what
// failed, nil when the whole was committed, and errLost when that is not known.
func (s *socket) transact(b []byte, last uint32) (failed []failure, err error) {
	s.drain()
	if s.fault != nil && !s.fault.fired && s.fault.hit(b) && s.fault.lost {
		defer func() { failed, err = nil, errLost }()
	}
	begin := s.pace.clock()
	err = s.send(b)
	s.pace.took(len(b), s.pace.clock().Sub(begin))
	if err != nil {
		if err == unix.ENOBUFS {
			return nil, fmt.Errorf("%w (%w)", errLost, err)
		}
		return nil, err
	}
	acked := false
	err = s.receive(func(typ, flags uint16, seq uint32, body []byte) bool {
		if typ != unix.NLMSG_ERROR || len(body) < 20 {
			return false
		}
		if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
			failed = append(failed, failure{seq, unix.Errno(-code), extendedText(flags, body)})
		} else if seq == last {
			acked = true
		}
		return false
	})
	switch {
	case len(failed) > 0:
		return failed, nil
	case err != nil:
		return nil, fmt.Errorf("%w (%w)", errLost, err)
	case !acked:
		return nil, errLost
	}
	s.own++
	return nil, nil
}

func extendedText(flags uint16, body []byte) string {
	if flags&unix.NLM_F_ACK_TLVS == 0 {
		return ""
	}
	return text(attr(body[20:], unix.NLMSGERR_ATTR_MSG))
}

// errInterrupted: someone wrote while a dump was read.
var errInterrupted = errors.New("the ruleset changed while it was read")

// dump sends one dump request and gives each answer, without its generic header, to f.
func (s *socket) dump(req []byte, f func(body []byte)) error {
	s.drain()
	if err := s.send(req); err != nil {
		return err
	}
	var ended bool
	var failed error
	for !ended && failed == nil {
		some := false
		err := s.receive(func(typ, flags uint16, _ uint32, body []byte) bool {
			some = true
			switch {
			case flags&unix.NLM_F_DUMP_INTR != 0 && !s.lenient:
				failed = errInterrupted
			case typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR:
				ended = true
				if len(body) >= 4 {
					if code := int32(binary.NativeEndian.Uint32(body)); code != 0 {
						failed = unix.Errno(-code)
					}
				}
			case typ>>8 == unix.NFNL_SUBSYS_NFTABLES && len(body) >= 4:
				f(body)
			}
			return ended
		})
		if err != nil {
			return err
		}
		if !some {
			return errLost
		}
	}
	return failed
}

// generation reads the number that every commit to nf_tables, by whoever, raises.
func (s *socket) generation() (uint32, error) {
	var m messages
	s.seq++
	m.begin(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, s.seq, 0)
	m.end()
	var gen uint32
	err := s.dump(m.buf, func(body []byte) { gen = number(attr(body[4:], unix.NFTA_GEN_ID)) })
	return gen, err
}

// inNetns runs f on a thread in the network namespace of a file descriptor; 0 is the current one.
func inNetns(netns int, f func() (int, error)) (int, error) {
	if netns == 0 {
		return f()
	}
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return 0, err
	}
	defer back.Close()
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return 0, fmt.Errorf("enter the network namespace: %w", err)
	}
	n, ferr := f()
	if err := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread stays locked: the runtime ends it with this goroutine.
		return 0, errors.Join(ferr, fmt.Errorf("leave the network namespace: %w", err))
	}
	runtime.UnlockOSThread()
	return n, ferr
}
