package testnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Do runs f on a thread in the host's namespace. Sockets and netlink handles that f opens stay in that namespace;
// goroutines that f starts do not.
func (h *Host) Do(f func() error) error { return within(h.ns, f) }

// Fd returns the file descriptor of the host's namespace, valid until the lab is closed.
func (h *Host) Fd() int { return int(h.ns.Fd()) }

// Silence cuts the host off: packets to it get no answer, as after a crash of its machine.
func (h *Host) Silence() error {
	link, err := h.nl.LinkByName("eth0")
	if err == nil {
		err = h.nl.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("testnet: silence %s: %w", h.Name, err)
	}
	return nil
}

// Blackhole drops what the host sends to an address, until remove is called.
func (h *Host) Blackhole(to netip.Addr) (remove func() error, err error) {
	r := &netlink.Route{Dst: hostNet(to), Type: unix.RTN_BLACKHOLE}
	if err := h.nl.RouteAdd(r); err != nil {
		return nil, fmt.Errorf("testnet: %s: drop packets to %s: %w", h.Name, to, err)
	}
	return func() error { return h.nl.RouteDel(r) }, nil
}

// Addr returns the host's first address of like's family.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	for _, a := range h.Addrs {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// AnswerTimeout is how long tests wait for an answer that must come. Machines stand still for many seconds.
const AnswerTimeout = time.Minute

// Dial opens a connection from the host. Network is tcp, udp or sctp.
func (h *Host) Dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	return h.DialFrom(ctx, network, netip.Addr{}, to)
}

// DialFrom is Dial from one of the host's addresses; an invalid address leaves the choice to the kernel.
func (h *Host) DialFrom(ctx context.Context, network string, from netip.Addr, to netip.AddrPort) (c net.Conn, err error) {
	if network == "sctp" {
		return h.dialSCTP(ctx, from, to)
	}
	var w watcher
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		if network == "tcp" {
			w.wg.Go(func() { w.watch(c) })
		}
		if !from.IsValid() && to.Addr().Is4() {
			from = netip.IPv4Unspecified()
		} else if !from.IsValid() {
			from = netip.IPv6Unspecified()
		}
		var err error
		cerr := c.Control(func(fd uintptr) { err = h.bind(int(fd), network, from) })
		return errors.Join(cerr, os.NewSyscallError("bind", err))
	}}
	if network == "tcp" {
		ctx = w.start(ctx)
		defer w.stop()
	}
	err = h.Do(func() error {
		c, err = d.DialContext(ctx, network, to.String())
		return err
	})
	if err != nil && w.stop() != 0 {
		err = &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", w.errno)}
	}
	return c, err
}

// bind uses the ports in turn: the kernel draws them in bind(2), and in connect(2) from a place that changes every 10 s, so
// that they repeat soon. conntrack keeps a UDP flow for 30 s or more, and an association of SCTP for 10 s after its end. It
// keeps a reset connection for 10 s with its NAT mapping, and a new one from the same port gets that endpoint if the reset
// overtook the client's last ACK (nf_conntrack_proto_tcp.c starts over only if a reset was the last packet).
func (h *Host) bind(fd int, network string, from netip.Addr) (err error) {
	used, first, many := &h.tcpPorts, uint32(32768), uint32(28000) // beyond the node ports and what Servers listen on
	switch network {
	case "sctp":
		used = &h.sctpPorts
	case "udp":
		used, first, many = &h.udpPorts, 10000, 55000
	}
	for range many {
		port := uint16(first + (used.Add(1)-1)%many)
		if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, port))); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return err
}

// watcher polls SO_ERROR for an early refusal. On veth pairs the answer to a SYN can arrive while connect(2) still owns
// the socket. Linux then keeps an ICMP error to itself and reports it after it has sent the SYN again, a second later;
// SO_ERROR has it at once.
type watcher struct {
	errno  syscall.Errno
	cancel context.CancelFunc
	over   chan struct{}
	wg     sync.WaitGroup
	once   sync.Once
}

func (w *watcher) start(ctx context.Context) context.Context {
	ctx, w.cancel = context.WithCancel(ctx)
	w.over = make(chan struct{})
	return ctx
}

func (w *watcher) watch(c syscall.RawConn) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-w.over:
			return
		case <-tick.C:
		}
		code := 0
		err := c.Control(func(fd uintptr) { code, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) })
		if err != nil {
			return
		}
		if code != 0 {
			w.errno = syscall.Errno(code)
			w.cancel()
			return
		}
	}
}

// stop ends the watch and returns the error it found, 0 if none.
func (w *watcher) stop() syscall.Errno {
	if w.over == nil {
		return 0
	}
	w.once.Do(func() { close(w.over) })
	w.wg.Wait()
	w.cancel()
	return w.errno
}

// Server answers with its name. Over TCP and SCTP it sends one line, "name client-address", to every connection and then
// echoes until the client closes. Over UDP it answers every datagram with that line.
type Server struct {
	Name     string
	close    []io.Closer
	wg       sync.WaitGroup
	accepted atomic.Int64
}

// Accepted returns the number of connections accepted so far; a server over UDP accepts none.
func (s *Server) Accepted() int64 { return s.accepted.Load() }

// Serve starts a server on the host; network is tcp, udp or sctp.
func (h *Host) Serve(network string, at netip.AddrPort, name string) (*Server, error) {
	s := &Server{Name: name}
	err := h.Do(func() error {
		var lc net.ListenConfig
		if network == "udp" {
			pc, err := lc.ListenPacket(context.Background(), network, at.String())
			if err != nil {
				return err
			}
			s.close = append(s.close, pc)
			s.wg.Go(func() { s.answer(pc) })
			return nil
		}
		listen := func() (net.Listener, error) { return lc.Listen(context.Background(), network, at.String()) }
		if network == "sctp" {
			listen = func() (net.Listener, error) { return listenSCTP(at) }
		}
		l, err := listen()
		if err != nil {
			return err
		}
		s.close = append(s.close, l)
		s.wg.Go(func() { s.accept(l) })
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("testnet: serve %s on %s of %s: %w", network, at, h.Name, err)
	}
	return s, nil
}

// Close stops the server. Open connections last until their clients close them.
func (s *Server) Close() {
	for _, c := range s.close {
		_ = c.Close()
	}
	s.wg.Wait()
}

func (s *Server) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		go func() {
			defer c.Close()
			if _, err := fmt.Fprintf(c, "%s %s\n", s.Name, c.RemoteAddr()); err == nil {
				_, _ = io.Copy(c, c)
			}
		}()
	}
}

func (s *Server) answer(pc net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		_, from, err := pc.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = pc.WriteTo(fmt.Appendf(nil, "%s %s\n", s.Name, from), from)
	}
}

// Answer is the line that a Server sent.
type Answer struct {
	Server string         // its name
	Client netip.AddrPort // the client as the server saw it
}

// Ask opens a connection, reads the greeting and closes it.
func (h *Host) Ask(network string, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	return h.AskFrom(network, netip.Addr{}, to, timeout)
}

// AskFrom is Ask from one of the host's addresses.
func (h *Host) AskFrom(network string, from netip.Addr, to netip.AddrPort, timeout time.Duration) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := h.DialFrom(ctx, network, from, to)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	if t, ok := c.(*net.TCPConn); ok {
		// A reset leaves no TIME_WAIT behind, so that many thousand connections do not use up the client's ports.
		_ = t.SetLinger(0)
	}
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return Answer{}, err
	}
	if network == "udp" {
		// A packet that is rejected or dropped on output fails with EPERM; only reading the answer tells the two apart.
		if _, err := c.Write([]byte("who?")); err != nil && !errors.Is(err, syscall.EPERM) {
			return Answer{}, err
		}
	}
	return Greeting(c)
}

// Greeting reads the line that a Server sends first from a new connection.
func Greeting(c net.Conn) (Answer, error) {
	line, err := bufio.NewReaderSize(c, 256).ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	name, client, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	addr, aerr := netip.ParseAddrPort(client)
	if !ok || aerr != nil {
		return Answer{}, fmt.Errorf("testnet: unexpected greeting %q", line)
	}
	return Answer{Server: name, Client: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}, nil
}

// Refused reports whether an error of Ask or Dial is a refusal.
func Refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// TimedOut reports whether an error of Ask or Dial is a timeout.
func TimedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
