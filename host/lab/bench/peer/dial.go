package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Connections are made with plain system calls on threads that stay in their namespace, so that little more than the
// kernel is measured.

// serve accepts connections on a port, at every address of the host, of both families, on the last CPU, and has one after the
// other answered.
func serve(h *testnet.Host, port uint16, answer func(fd int)) (stop func(), err error) {
	fd := -1
	err = h.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", unix.Listen(fd, 4096))
	})
	if err != nil {
		return nil, fmt.Errorf("serve on port %d of %s: %w", port, h.Name, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		var last unix.CPUSet
		last.Set(runtime.NumCPU() - 1)
		_ = unix.SchedSetaffinity(0, &last)
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBADF):
				return
			case err != nil:
				continue // an error of the client
			}
			answer(c)
			_ = unix.Close(c)
		}
	})
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RD)
		wg.Wait()
		_ = unix.Close(fd)
	}, nil
}

// greet answers with one byte. The client resets the connection, so there is no TIME_WAIT.
func greet(name byte) func(int) {
	return func(fd int) { _, _ = unix.Write(fd, []byte{name}) }
}

// echo answers each byte with itself.
func echo(fd int) {
	for one := make([]byte, 1); ; {
		if n, err := readSome(fd, one); err != nil || n == 0 {
			return
		}
		if _, err := unix.Write(fd, one); err != nil {
			return
		}
	}
}

// discard reads until the client ends.
func discard(fd int) {
	for buffer := make([]byte, writeSize); ; {
		if n, err := readSome(fd, buffer); err != nil || n == 0 {
			return
		}
	}
}

// readSome reads, also after an interruption.
func readSome(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if !errors.Is(err, unix.EINTR) {
			return n, os.NewSyscallError("read", err)
		}
	}
}

// connect opens a connection from the calling thread's namespace, reads the server's byte and resets the connection. took
// is the time until it is established; timeout limits each step.
func connect(to netip.AddrPort, timeout time.Duration) (who byte, took time.Duration, err error) {
	fd, took, err := dial(to, timeout)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	var b [1]byte
	n, err := readSome(fd, b[:])
	if err == nil && n == 0 {
		err = errors.New("connection closed without data")
	}
	return b[0], took, err
}

// dial opens a connection that is reset when it is closed.
func dial(to netip.AddrPort, timeout time.Duration) (fd int, took time.Duration, err error) {
	family, at := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, os.NewSyscallError("socket", err)
	}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	err = os.NewSyscallError("setsockopt", errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})))
	begin := time.Now()
	if err == nil {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); { // interrupted: continue to wait
			err = unix.Connect(fd, at)
		}
		err = os.NewSyscallError("connect", err)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, 0, err
	}
	return fd, time.Since(begin), nil
}

// awaitServer waits 1/retryFraction of the elapsed time, within limits, for a connection (an address that is not programmed
// does not answer) and between attempts. That is the resolution of the result, and leaves the CPU to the proxy.
const (
	retryFraction     = 100
	minPause          = 50 * time.Microsecond
	maxPause          = 20 * time.Millisecond
	minConnectTimeout = 5 * time.Millisecond
	maxConnectTimeout = 100 * time.Millisecond
)

// anyServer accepts an answer from every server.
const anyServer = 0

// awaitServer connects repeatedly from the calling thread's namespace until the wanted server answers, and returns the
// time of that.
func awaitServer(to netip.AddrPort, want byte, begin, until time.Time) (time.Time, error) {
	for {
		who, _, err := connect(to, min(max(time.Since(begin)/retryFraction, minConnectTimeout), maxConnectTimeout))
		now := time.Now()
		if err == nil && (who == want || want == anyServer) {
			return now, nil
		}
		if now.After(until) {
			if err == nil {
				err = fmt.Errorf("%q answers", who)
			}
			return now, fmt.Errorf("%s: no connection to server %q after %s: %w", to, want, now.Sub(begin).Round(time.Millisecond), err)
		}
		if pause := min(now.Sub(begin)/retryFraction, maxPause); pause >= minPause {
			time.Sleep(pause)
		}
	}
}
