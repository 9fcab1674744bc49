package testnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SCTP returns why the kernel does not support SCTP sockets, or nil if it does.
func SCTP() error {
	s, err := sctpSocket(netip.IPv4Unspecified())
	if err != nil {
		return err
	}
	return unix.Close(s)
}

// sctpSocket makes a socket of the one-to-one style: it is used like one of TCP.
func sctpSocket(like netip.Addr) (int, error) {
	family := unix.AF_INET
	if like.Is6() {
		family = unix.AF_INET6
	}
	s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, fmt.Errorf("this kernel has no sockets of SCTP (CONFIG_IP_SCTP): %w", err)
	}
	set := func(level, option int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(s, level, option, 1))
		}
	}
	set(unix.SOL_SOCKET, unix.SO_REUSEADDR)
	// Without these a rejection by ICMP is reported only after all INITs have timed out.
	if set(unix.SOL_IP, unix.IP_RECVERR); family == unix.AF_INET6 {
		set(unix.SOL_IPV6, unix.IPV6_RECVERR)
		set(unix.SOL_IPV6, unix.IPV6_V6ONLY)
	}
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptString(s, unix.IPPROTO_SCTP, sctpRTOInfo, sctpSoon()))
	}
	if err != nil {
		unix.Close(s)
		return -1, err
	}
	return s, nil
}

const sctpRTOInfo = 0 // SCTP_RTOINFO of linux/sctp.h

// sctpSoon is its argument: an INIT is sent again after 0.2 s, not 3. A refusal that comes back while connect(2) has
// the socket is lost, and only that of the second INIT counts.
func sctpSoon() string {
	var b []byte
	for _, v := range []uint32{0, 200, 0, 0} { // the association, ms at first, at most and at least; 0: as it is
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return string(b)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// dialSCTP connects from one address. A socket that is not bound would tell the other end of all addresses of its host,
// and that would answer to those too, which no address translation can follow.
func (h *Host) dialSCTP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	var f *os.File
	err := h.Do(func() (err error) {
		if !from.IsValid() {
			if from, err = sourceTo(to); err != nil {
				return err
			}
		}
		s, err := sctpSocket(from)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(s), "sctp")
		if err := h.bind(s, "sctp", from); err != nil {
			return os.NewSyscallError("bind", err)
		}
		if err := unix.Connect(s, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return os.NewSyscallError("connect", err)
		}
		return nil
	})
	if f != nil {
		defer f.Close()
	}
	var c net.Conn
	if err == nil {
		err = connected(ctx, f)
	}
	if err == nil {
		c, err = net.FileConn(f) // takes it for one of TCP
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "sctp", Addr: net.TCPAddrFromAddrPort(to), Err: err}
	}
	return c, nil
}

// connected waits until the other end has answered.
func connected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var result error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err == nil {
			if _, err = unix.Getpeername(int(fd)); errors.Is(err, unix.ENOTCONN) {
				return false // not yet
			}
		}
		result = os.NewSyscallError("connect", err)
		return true
	})
	if cerr := ctx.Err(); err != nil && cerr != nil {
		return cerr
	}
	return errors.Join(err, result)
}

// sourceTo is the address that the kernel would connect from.
func sourceTo(to netip.AddrPort) (netip.Addr, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) // sends nothing
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// listenSCTP listens in the namespace of the calling thread.
func listenSCTP(at netip.AddrPort) (net.Listener, error) {
	s, err := sctpSocket(at.Addr())
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(s), "sctp")
	defer f.Close()
	// By itself SCTP does not answer from 169.254.0.0/16, where gateways are here, to anywhere else.
	if err := os.WriteFile("/proc/sys/net/sctp/addr_scope_policy", []byte("0"), 0); err != nil {
		return nil, err
	}
	if err := unix.Bind(s, sockaddr(at)); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(s, 128); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	return net.FileListener(f)
}
