package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"golang.org/x/sys/unix"
)

// Dialer makes many connections from a host, each from a port of its own. To conntrack, a connection from the port of one
// that it still knows can be the same connection.
type Dialer struct {
	host *testnet.Host
	port [2]uint16 // used last, TCP and UDP
}

// NewDialer returns a dialer that has used no port.
func NewDialer(h *testnet.Host) *Dialer { return &Dialer{host: h} }

// Attempt begins connections over TCP to an endpoint that stays silent, and gives them up at once.
func (c *Dialer) Attempt(to netip.AddrPort, n int) error {
	saw, err := c.connect(model.TCP, to, n, notAtAll)
	if err == nil && saw.Answered+saw.Refused > 0 {
		err = fmt.Errorf("%s: %+v", to, saw)
	}
	return err
}

const firstDialerPort = 10000

// nextPort returns a port that was not used for a protocol.
func (c *Dialer) nextPort(proto model.Protocol) (int, error) {
	p := &c.port[0]
	if proto == model.UDP {
		p = &c.port[1]
	}
	if *p == 0 {
		*p = firstDialerPort - 1
	}
	if *p == 65535 {
		return 0, fmt.Errorf("%s has no unused port", c.host.Name)
	}
	*p++
	return int(*p), nil
}

// patience returns for a connection that has begun how to find out that no answer will come any more.
type patience func() (over func() bool)

func forever() func() bool  { return func() bool { return false } }
func notAtAll() func() bool { return func() bool { return true } }

// connect makes n connections, one after the other, and returns what came back.
func (c *Dialer) connect(proto model.Protocol, to netip.AddrPort, n int, wait patience) (saw backend.OutcomeCounters, err error) {
	err = c.host.Do(func() error {
		for range n {
			fd, err := c.open(proto, to)
			if err != nil {
				return err
			}
			over := wait()
			saw.Attempts++
			answered, refused, err := await(fd, proto, over)
			_ = unix.Close(fd)
			if err != nil {
				return fmt.Errorf("connection %d: %w", saw.Attempts, err)
			}
			if answered {
				saw.Answered++
			}
			if refused {
				saw.Refused++
			}
		}
		return nil
	})
	return saw, err
}

// open begins a connection in the namespace of the calling thread.
func (c *Dialer) open(proto model.Protocol, to netip.AddrPort) (fd int, err error) {
	family, kind, from := unix.AF_INET, unix.SOCK_STREAM, netip.IPv4Unspecified()
	if to.Addr().Is6() {
		family, from = unix.AF_INET6, netip.IPv6Unspecified()
	}
	if proto == model.UDP {
		kind = unix.SOCK_DGRAM
	}
	if fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	for err = unix.EADDRINUSE; errors.Is(err, unix.EADDRINUSE); {
		var port int
		if port, err = c.nextPort(proto); err == nil {
			err = os.NewSyscallError("bind", unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, uint16(port)))))
		}
	}
	if err == nil && proto == model.TCP { // a reset leaves no TIME_WAIT
		err = os.NewSyscallError("setsockopt", unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	}
	if err == nil {
		if err = unix.Connect(fd, sockaddr(to)); errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.ECONNREFUSED) {
			err = nil
		}
		err = os.NewSyscallError("connect", err)
	}
	if err == nil && proto == model.UDP {
		_, err = unix.Write(fd, []byte("who?"))
		err = os.NewSyscallError("write", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// await returns what happened to a connection.
func await(fd int, proto model.Protocol, over func() bool) (answered, refused bool, err error) {
	events := int16(unix.POLLOUT)
	if proto == model.UDP {
		events = unix.POLLIN
	}
	for end := time.Now().Add(testnet.AnswerTimeout); ; {
		last, milliseconds := over(), 10
		if last {
			milliseconds = 0
		}
		list := []unix.PollFd{{Fd: int32(fd), Events: events}}
		ready, err := unix.Poll(list, milliseconds)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, false, os.NewSyscallError("poll", err)
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch unix.Errno(code) {
		case 0:
		case unix.ECONNREFUSED, unix.EHOSTUNREACH:
			return false, true, err
		case unix.ECONNRESET: // the server accepted, and closed
			return true, false, err
		default:
			return false, false, unix.Errno(code)
		}
		if ready > 0 && list[0].Revents&events != 0 {
			return true, false, nil
		}
		if last {
			return false, false, nil
		}
		if time.Now().After(end) {
			return false, false, errors.New("no answer within 30 s")
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// listener accepts connections over TCP and closes them, and answers each datagram three times.
type listener struct {
	tcp, udp int
	wg       sync.WaitGroup
}

const replies = 3

// listen starts an endpoint.
func (b *outcomesBed) listen(kind endpointKind, v6 bool) (*listener, error) {
	l, at := &listener{}, sockaddr(b.endpoint(kind, v6))
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	err := b.hostOf(kind).Do(func() (err error) {
		if l.tcp, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if l.udp, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(l.tcp, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(l.udp, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20),
			unix.Bind(l.tcp, at), unix.Bind(l.udp, at), unix.Listen(l.tcp, 4096))
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", b.endpoint(kind, v6), err)
	}
	l.wg.Go(func() {
		for {
			c, _, err := unix.Accept4(l.tcp, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			_ = unix.Close(c)
		}
	})
	l.wg.Go(func() {
		buf := make([]byte, 64)
		for {
			n, from, err := unix.Recvfrom(l.udp, buf, 0)
			if err == unix.ECONNREFUSED {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			for range replies {
				_ = unix.Sendto(l.udp, buf[:n], 0, from)
			}
		}
	})
	return l, nil
}

// close stops the endpoint. shutdown(2) wakes the calls that wait for the sockets.
func (l *listener) close() {
	_ = unix.Shutdown(l.tcp, unix.SHUT_RDWR)
	_ = unix.Shutdown(l.udp, unix.SHUT_RDWR)
	l.wg.Wait()
	_ = unix.Close(l.tcp)
	_ = unix.Close(l.udp)
}
