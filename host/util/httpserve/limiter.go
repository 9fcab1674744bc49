package httpserve

import (
	"net"
	"net/netip"
	"sync"
)

// Limiter bounds the number of open connections of one or more servers. When a connection exceeds the maximum, another one is
// closed in its place: the oldest one of the client address that has the most. So a client that keeps many connections
// open, or opens many, keeps neither the kubelet nor another client from being served. Of IPv6, addresses with the same
// first 64 bits count as one client.
type Limiter struct {
	max     int
	onEvict func()

	mu    sync.Mutex
	conns []*conn // by age
}

// NewLimiter returns a Limiter of at most limit connections. onEvict, if not nil, is called for each connection that is closed in
// favor of another one.
func NewLimiter(limit int, onEvict func()) *Limiter {
	if onEvict == nil {
		onEvict = func() {}
	}
	return &Limiter{max: limit, onEvict: onEvict}
}

// Listener returns l with the limit.
func (l *Limiter) Listener(from net.Listener) net.Listener { return &listener{from, l} }

// Open returns the number of open connections.
func (l *Limiter) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

type listener struct {
	net.Listener
	limiter *Limiter
}

// Accept implements net.Listener.
func (s *listener) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.limiter.add(c), nil
}

// conn is a connection that the limiter counts.
type conn struct {
	net.Conn
	limiter *Limiter
	client  netip.Prefix
}

func (l *Limiter) add(from net.Conn) *conn {
	c := &conn{Conn: from, limiter: l, client: client(from.RemoteAddr())}
	l.mu.Lock()
	l.conns = append(l.conns, c)
	var evicted *conn
	if len(l.conns) > l.max {
		evicted = l.remove(l.victim())
	}
	l.mu.Unlock()
	if evicted != nil {
		if tcp, ok := evicted.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the kernel keeps nothing of it
		}
		_ = evicted.Conn.Close()
		l.onEvict()
	}
	return c
}

// victim returns the index of the connection to close. The caller holds the lock.
func (l *Limiter) victim() int {
	count := map[netip.Prefix]int{}
	for _, c := range l.conns {
		count[c.client]++
	}
	oldest := 0
	for i, c := range l.conns {
		if count[c.client] > count[l.conns[oldest].client] {
			oldest = i
		}
	}
	return oldest
}

// remove removes a connection. The caller holds the lock.
func (l *Limiter) remove(i int) *conn {
	c := l.conns[i]
	copy(l.conns[i:], l.conns[i+1:])
	l.conns[len(l.conns)-1] = nil
	l.conns = l.conns[:len(l.conns)-1]
	return c
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	for i, other := range c.limiter.conns {
		if other == c {
			c.limiter.remove(i)
			break
		}
	}
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// client returns the prefix that stands for the client at an address; the zero value for Unix sockets.
func client(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	p, _ := addr.Prefix(bits)
	return p
}
