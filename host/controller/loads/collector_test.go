package loads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/host/controller/orca"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/orcaserver"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

func anyPod(context.Context, string, Endpoint) error { return nil }

// run runs a collector until the test ends, or stop.
func run(t *testing.T, o Options) (c *Collector, stop func()) {
	t.Helper()
	c = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return c, stop
}

func named(name string) model.Name {
	namespace, base, _ := strings.Cut(name, "/")
	return model.Name{Namespace: namespace, Name: base}
}

func of(name string, port uint16, addrs ...string) Service {
	s := Service{Name: named(name), UID: "uid-" + name, Port: port}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, Endpoint{Addr: netip.MustParseAddr(a), Pod: "pod-" + a, UID: "uid-" + a})
	}
	return s
}

// many are n endpoints from 127.1.0.0 on.
func many(n int) (out []string) {
	for i := range n {
		out = append(out, netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}).String())
	}
	return out
}

// text is what would be written of a Service.
func text(c *Collector, name string) string {
	l := c.Load(named(name))
	if l == nil {
		return "nothing"
	}
	out := fmt.Sprintf("%d/%d", l.Reporting, l.Silent)
	for _, e := range l.Endpoints {
		out += fmt.Sprint(" ", e.Address, " ", e.Values)
	}
	if l.Message != "" {
		out += " " + l.Message
	}
	return out
}

func eventually(t *testing.T, c *Collector, name, want string) {
	t.Helper()
	testenv.Eventually(t, want, func() bool { return text(c, name) == want }, func() string { return fmt.Sprintf("%s, %+v", text(c, name), c.Counts()) })
}

// streams is a server that counts the streams that are open, and reports a number at once.
type streams struct {
	open, all atomic.Int64
	end       chan struct{} // closed: they end
}

func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.open.Add(1)
	s.all.Add(1)
	defer s.open.Add(-1)
	_, _ = io.Copy(io.Discard, r.Body)
	orcaserver.Answer(w, orcaserver.Number(1, .5))
	select {
	case <-r.Context().Done():
	case <-s.end:
	}
}

func serve(t *testing.T, address string) (*streams, uint16) {
	t.Helper()
	l, addr := orcaserver.Listen(t, address)
	s := &streams{end: make(chan struct{})}
	orcaserver.Serve(t, l, s.ServeHTTP)
	return s, addr.Port()
}

// TestReportsBecomeLoad: of two Services with a common endpoint, which is asked once; of an endpoint that nobody serves; and of
// an address that another slice claims for another Pod.
func TestReportsBecomeLoad(t *testing.T) {
	s, port := serve(t, "127.0.0.1:0")
	c, _ := run(t, Options{Ask: orca.Stream, Check: func(_ context.Context, _ string, e Endpoint) error {
		if e.Pod == "forged" {
			return errors.New("has other addresses")
		}
		return nil
	}})
	web, copied := of("shop/web", port, "127.0.0.1", "127.0.0.2"), of("shop/copy", port, "127.0.0.1")
	copied.Endpoints = append(copied.Endpoints, Endpoint{Addr: netip.MustParseAddr("127.0.0.1"), Pod: "forged", UID: "forged"})
	c.Set([]Service{web, copied})
	eventually(t, c, "shop/web", fmt.Sprintf("1/1 127.0.0.1 map[cpu_utilization:0.5] 127.0.0.2: dial tcp 127.0.0.2:%d: connect: connection refused", port))
	eventually(t, c, "shop/copy", "1/0 127.0.0.1 map[cpu_utilization:0.5]")
	if n := s.all.Load(); n != 1 {
		t.Errorf("%d streams to one endpoint", n)
	}
	if n := c.Counts(); n.Services != 2 || n.Streams != 1 || n.Refused == 0 || n.Failed == 0 || n.Reports != 1 {
		t.Errorf("%+v", n)
	}
}

// TestStreamsEndWithWhatTheyAreFor: the endpoint, the Service or its annotation, and leadership.
func TestStreamsEndWithWhatTheyAreFor(t *testing.T) {
	s, port := serve(t, "0.0.0.0:0")
	c, stop := run(t, Options{Ask: orca.Stream, Check: anyPod})
	open := func(want int64) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprint(want, " streams"), func() bool { return s.open.Load() == want && c.Counts().Streams == int(want) },
			func() string { return fmt.Sprintf("%d, %+v", s.open.Load(), c.Counts()) })
	}
	c.Set([]Service{of("shop/a", port, "127.0.0.1", "127.0.0.2", "127.0.0.3"), of("shop/b", port, "127.0.0.4")})
	open(4)
	c.Set([]Service{of("shop/a", port, "127.0.0.1", "127.0.0.3"), of("shop/b", port, "127.0.0.4")})
	open(3)
	c.Set([]Service{of("shop/a", port, "127.0.0.1", "127.0.0.3")})
	open(2)
	if got := text(c, "shop/b"); got != "nothing" {
		t.Error(got)
	}
	stop()
	testenv.Eventually(t, "no stream", func() bool { return s.open.Load() == 0 })
	if n := c.Counts().Streams; n != 0 {
		t.Errorf("%d streams after the end", n)
	}
	if n := s.all.Load(); n != 4 {
		t.Errorf("%d streams for four endpoints", n)
	}
}

// TestSilentNamespaceDelaysNoOther: 2,000 endpoints that accept connections and never answer.
func TestSilentNamespaceDelaysNoOther(t *testing.T) {
	silent, addr := orcaserver.Listen(t, "0.0.0.0:0")
	var conns sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() { silent.Close(); close(done); conns.Wait() })
	conns.Go(func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { hold(conn, done) })
		}
	})
	_, port := serve(t, "127.0.0.1:0")
	var mu sync.Mutex
	var order []string
	c, _ := run(t, Options{Ask: orca.Stream, Check: func(_ context.Context, namespace string, _ Endpoint) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, namespace)
		return nil
	}})
	all := many(2000)
	loud := []Service{of("a/one", addr.Port(), all[:1000]...), of("a/two", addr.Port(), all[1000:]...)}
	c.Set(loud)
	testenv.Eventually(t, "connections of the first namespace", func() bool { return c.Counts().Connects >= 10 })
	mu.Lock()
	before := len(order)
	mu.Unlock()
	c.Set(append(loud, of("b/web", port, "127.0.0.1")))
	eventually(t, c, "b/web", "1/0 127.0.0.1 map[cpu_utilization:0.5]")
	mu.Lock()
	defer mu.Unlock()
	for i, namespace := range order[before:] {
		if namespace == "b" {
			t.Logf("connection %d after it was asked for", i+1)
			if i > 4 {
				t.Errorf("%d connections of another namespace came first", i)
			}
		}
	}
}

func hold(conn net.Conn, done chan struct{}) {
	<-done
	conn.Close()
}
