package httpserve_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
)

// limitedServer is a server with a limit of connections. It counts what it reads.
type limitedServer struct {
	*testing.T
	addr            string
	limiter         *httpserve.Limiter
	evicted, header atomic.Int64
}

const maxConns = 50

func serveLimited(t *testing.T) *limitedServer {
	s := &limitedServer{T: t}
	s.limiter = httpserve.NewLimiter(maxConns, func() { s.evicted.Add(1) })
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port)
	server := httpserve.NewServer("test", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "here") }), slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(s.limiter.Listener(countingListener{l, &s.header}))
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
		s.wait("all connections closed", func() bool { return s.limiter.Open() == 0 })
	})
	return s
}

// countingListener counts the bytes that its connections read.
type countingListener struct {
	net.Listener
	read *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{c, l.read}, nil
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

func (s *limitedServer) wait(what string, ok func() bool) {
	s.Helper()
	testenv.Eventually(s, what, ok, func() string { return fmt.Sprintf("%d open, %d evicted", s.limiter.Open(), s.evicted.Load()) })
}

// dial connects from an address of the loopback network and sends the beginning of a request.
func (s *limitedServer) dial(from string) net.Conn {
	s.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	c, err := d.Dial("tcp4", s.addr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { c.Close() })
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	return c
}

// finish ends the request of a connection and reports whether it is answered.
func finish(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, "1\r\nConnection: close\r\n\r\n")
	b, _ := io.ReadAll(c)
	return strings.HasSuffix(string(b), "\r\n\r\nhere")
}

func TestSlowClientsAreLimitedAndOthersServed(t *testing.T) {
	s := serveLimited(t)
	const clients = 1000
	early, kubelet := s.dial("127.0.0.3"), s.dial("127.0.0.1")
	for i := range clients {
		s.dial("127.0.0.2")
		if open := s.limiter.Open(); open > maxConns {
			t.Fatalf("%d open", open)
		}
		if i%100 == 0 && get(t, s.addr) != "here" { // from 127.0.0.1
			t.Fatal("a new client is not served")
		}
	}
	s.wait("evictions", func() bool { return s.evicted.Load() >= clients-maxConns })
	if !finish(early) || !finish(kubelet) {
		t.Error("a client with one connection was evicted")
	}
	// With the same address as all others, a new connection is served as well.
	if !finish(s.dial("127.0.0.2")) {
		t.Error("a new connection from the same address is not served")
	}
}

func TestManyAddressesEvictTheOldest(t *testing.T) {
	s := serveLimited(t)
	for i := range 300 {
		s.dial(fmt.Sprintf("127.0.%d.%d", 1+i/100, 1+i%100))
	}
	s.wait("evictions", func() bool { return s.evicted.Load() == 250 && s.limiter.Open() == maxConns })
	if get(t, s.addr) != "here" {
		t.Error("a new client is not served")
	}
}

func TestEndlessHeaderIsCut(t *testing.T) {
	s := serveLimited(t)
	c := s.dial("127.0.0.2")
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	var err error
	for err == nil {
		_, err = io.WriteString(c, strings.Repeat("x", 4096))
	}
	if n := s.header.Load(); n < 1000 || n > 64<<10 {
		t.Errorf("%d bytes of a header were read", n)
	}
}

func TestServersShareALimiter(t *testing.T) {
	limiter := httpserve.NewLimiter(3, nil)
	var conns []net.Conn
	for range 2 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		limited := limiter.Listener(l)
		defer limited.Close()
		for range 3 {
			c, err := net.Dial("tcp4", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			accepted, err := limited.Accept()
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, accepted)
		}
	}
	if limiter.Open() != 3 {
		t.Errorf("%d open", limiter.Open())
	}
	for _, c := range conns {
		_ = c.Close()
		_ = c.Close()
	}
	if limiter.Open() != 0 {
		t.Errorf("%d open after all were closed", limiter.Open())
	}
}

func TestSlowRequestsHaveDeadlines(t *testing.T) {
	s := httpserve.NewServer("test", nil, slog.New(slog.DiscardHandler))
	for name, d := range map[string]time.Duration{"header": s.ReadHeaderTimeout, "read": s.ReadTimeout, "write": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s: %s", name, d)
		}
	}
}
