package main

import (
	"bytes"
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// load is a number of clients, each with one connection at a time. A client connects, reads the name of the server, waits, checks
// with an echo that the connection still works, and closes it. Those with long connections only check. The number of connections
// at a time is constant, so that what is measured does not depend on how fast the machine is.
type load struct {
	host    *testnet.Host
	to      netip.AddrPort
	short   int           // clients with short connections, …
	hold    time.Duration // … which last this long on average, from half of it to one and a half
	long    int           // clients with long connections, …
	check   time.Duration // … which are checked at this interval
	timeout time.Duration // without an answer, a connection hangs
	record  *recorder

	finished atomic.Int64 // connections that have ended or failed
	stopped  atomic.Bool

	epoll   int
	clients []client
	byFD    map[int32]*client
	timers  timers
	rng     *rand.Rand
}

// The states of a client.
type state uint8

const (
	idle       state = iota
	connecting       // without an answer to the SYN
	greeted          // connected: the name of the server follows
	open
	checking // an echo is expected
)

// client is one of load.clients.
type client struct {
	number int
	long   bool
	state  state
	fd     int
	server int       // its index in recorder.names, while open or checking
	began  time.Time // when it began to connect
	at     time.Time // of the next step: a timeout, unless the client is idle or open
	index  int       // in timers
}

// timers is a heap of clients by their next step.
type timers []*client

// Len implements heap.Interface.
func (t timers) Len() int { return len(t) }

// Less implements heap.Interface.
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }

// Swap implements heap.Interface.
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	c := x.(*client)
	c.index = len(*t)
	*t = append(*t, c)
}

// Pop implements heap.Interface. No client leaves.
func (t *timers) Pop() any { panic("never called") }

// run connects until stop. All sockets are those of the host's namespace, as all calls are made on one thread in it.
func (l *load) run() error {
	return l.host.Do(func() (err error) {
		// More ports than connections: a port that is used again while conntrack remembers its last connection leads to the same
		// endpoint.
		_ = os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("1024 65535"), 0)
		if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return os.NewSyscallError("epoll_create1", err)
		}
		defer unix.Close(l.epoll)
		l.rng = rand.New(rand.NewPCG(1, 2))
		l.clients, l.byFD = make([]client, l.short+l.long), map[int32]*client{}
		now := time.Now()
		for i := range l.clients {
			c := &l.clients[i]
			c.number, c.long = i, i >= l.short
			c.at = now.Add(time.Duration(l.rng.Int64N(int64(l.hold)))) // not all at once
			heap.Push(&l.timers, c)
		}
		defer l.closeAll()
		return l.loop()
	})
}

// stop ends run. Open connections do not count.
func (l *load) stop() { l.stopped.Store(true) }

func (l *load) loop() error {
	events := make([]unix.EpollEvent, 256)
	for !l.stopped.Load() {
		wait := min(max(0, time.Until(l.timers[0].at).Milliseconds()+1), 50)
		n, err := unix.EpollWait(l.epoll, events, int(wait))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("epoll_wait", err)
		}
		for i := range max(0, n) {
			if c := l.byFD[events[i].Fd]; c != nil {
				l.proceed(c)
			}
		}
		now := time.Now()
		for !l.timers[0].at.After(now) {
			if err := l.expire(l.timers[0]); err != nil {
				return err
			}
		}
		l.record.tick(now)
	}
	return nil
}

func (l *load) schedule(c *client, after time.Duration) {
	c.at = time.Now().Add(after)
	heap.Fix(&l.timers, c.index)
}

// around returns a random duration from half of d to one and a half.
func (l *load) around(d time.Duration) time.Duration {
	return d/2 + time.Duration(l.rng.Int64N(int64(d)))
}

// expire does what a client has waited for.
func (l *load) expire(c *client) error {
	switch c.state {
	case idle:
		return l.connect(c)
	case open:
		c.state = checking
		l.schedule(c, l.timeout)
		if _, err := unix.Write(c.fd, []byte("x")); err != nil {
			l.fail(c, err)
		}
	default:
		// If this thread was late, what it waited for may be there.
		if before := c.state; !l.proceed(c) && c.state == before {
			l.fail(c, unix.ETIMEDOUT)
		}
	}
	return nil
}

func (l *load) connect(c *client) (err error) {
	c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	l.byFD[int32(c.fd)] = c
	c.state, c.began = connecting, time.Now()
	l.schedule(c, l.timeout)
	from := l.host.Addrs[c.number%len(l.host.Addrs)].As4()
	err = errors.Join(
		// Without TIME_WAIT.
		unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(c.fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
		unix.Bind(c.fd, &unix.SockaddrInet4{Addr: from}),
		unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Fd: int32(c.fd), Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET}),
	)
	if err != nil {
		return fmt.Errorf("prepare a socket: %w", err)
	}
	err = unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(l.to.Port()), Addr: l.to.Addr().As4()})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		l.fail(c, err)
	}
	return nil
}

// proceed does what a client can do after an event of its socket, and reports whether its server has answered.
func (l *load) proceed(c *client) bool {
	if c.state == connecting {
		code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			l.fail(c, err)
			return false
		}
		if _, err := unix.Getpeername(c.fd); err != nil {
			return false // not yet connected
		}
		c.state = greeted
	}
	var buf [64]byte
	n, err := unix.Read(c.fd, buf[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case err != nil:
		l.fail(c, err)
		return false
	case n == 0:
		l.fail(c, unix.ECONNRESET)
		return false
	case c.state == greeted:
		c.state = open
		name, _, _ := bytes.Cut(buf[:n], []byte(" "))
		c.server = l.record.opened(string(name), c.long)
		if c.long {
			l.schedule(c, l.around(l.check))
		} else {
			l.schedule(c, l.around(l.hold))
		}
	case c.state == checking && c.long:
		c.state = open
		l.schedule(c, l.around(l.check))
	case c.state == checking:
		l.close(c)
		l.finished.Add(1)
		l.record.ok++
		l.schedule(c, 0)
	}
	return true
}

// fail ends a connection that has failed. The client tries again later, as clients do.
func (l *load) fail(c *client, err error) {
	l.record.failed(classify(err), c.long && c.state >= open)
	if c.state < open {
		l.record.lastBegan = c.began.Sub(l.record.began)
	}
	l.finished.Add(1)
	l.close(c)
	l.schedule(c, l.around(min(l.hold, time.Second)))
}

// close closes a connection and makes the client idle.
func (l *load) close(c *client) {
	if c.state >= open {
		l.record.closed(c.server)
	}
	delete(l.byFD, int32(c.fd))
	_ = unix.Close(c.fd)
	c.state = idle
}

func (l *load) closeAll() {
	for fd := range l.byFD {
		_ = unix.Close(int(fd))
	}
}

// classify returns the class of a failed connection.
func classify(err error) failure {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return reset
	case errors.Is(err, unix.ETIMEDOUT):
		return hung
	}
	return unreachable
}
