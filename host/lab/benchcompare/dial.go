package main

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

// Connections here are made by bare system calls on threads that stay in their namespace: what is measured is the
// kernel, and little else.

// serve answers each connection on a port, at every address of the host, with one byte.
func serve(h *testnet.Host, port uint16, name byte) (stop func(), err error) {
	fd := -1
	err = h.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", unix.Listen(fd, 4096))
	})
	if err != nil {
		return nil, fmt.Errorf("serve on port %d of %s: %w", port, h.Name, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBADF):
				return
			case err != nil:
				continue // the client's trouble
			}
			_, _ = unix.Write(c, []byte{name})
			_ = unix.Close(c) // the client resets it: nothing stays
		}
	})
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RD)
		wg.Wait()
		_ = unix.Close(fd)
	}, nil
}

// connect opens a connection from the calling thread's namespace, reads who answers and resets it. Took is until the
// connection stands; patience bounds each step.
func connect(to netip.AddrPort, timeout time.Duration) (who byte, took time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
	if err != nil {
		return 0, 0, os.NewSyscallError("setsockopt", err)
	}
	begin := time.Now()
	at := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // again: it goes on waiting
		err = unix.Connect(fd, at)
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("connect", err)
	}
	took = time.Since(begin)
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, took, os.NewSyscallError("read", err)
		case n == 0:
			return 0, took, errors.New("closed without an answer")
		}
		return b[0], took, nil
	}
}

// await waits, for an answer (an address that is not programmed gives none) and between its tries, a hundredth of the
// time that has passed, within bounds: the time measured is that exact, and the proxy has the processor.
const (
	retryFraction     = 100
	minPause          = 50 * time.Microsecond
	maxPause          = 20 * time.Millisecond
	minConnectTimeout = 5 * time.Millisecond
	maxConnectTimeout = 100 * time.Millisecond
)

// anyServer may answer: what is not programmed has nobody who does.
const anyServer = 0

// awaitServer connects again and again, from a thread that is in the client's namespace, until the right one answers, and
// gives the time of that.
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
			return now, fmt.Errorf("%s does not lead to %q after %s: %w", to, want, now.Sub(begin).Round(time.Millisecond), err)
		}
		if pause := min(now.Sub(begin)/retryFraction, maxPause); pause >= minPause {
			time.Sleep(pause)
		}
	}
}
