package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// start serves until the returned function is called, which returns when the server has ended.
func start(t *testing.T, s *Server, l net.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func runClient(t *testing.T, c Client) *Result {
	t.Helper()
	c.Timeout = max(c.Timeout, 100*time.Millisecond)
	r, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestConnectionsAreCountedByServer(t *testing.T) {
	a, b := listen(t), listen(t)
	defer start(t, &Server{Name: "a"}, a)()
	defer start(t, &Server{Name: "b"}, b)()
	r := runClient(t, Client{Targets: []string{a.Addr().String(), b.Addr().String()}, Rate: 1000, Count: 101, Timeout: 10 * time.Second})
	if want := map[string]int{"a": 51, "b": 50}; r.Connections != 101 || !cmp.Equal(r.Servers, want) || r.Failed.Total()+r.Broken.Total() != 0 {
		t.Errorf("%+v, want %v", r, want)
	}
	inSeconds := map[string]int{}
	for _, s := range r.Seconds {
		inSeconds = sum(inSeconds, s.Servers)
	}
	if !cmp.Equal(inSeconds, r.Servers) {
		t.Errorf("by second: %v", inSeconds)
	}
	if l := r.Latency; l.Median <= 0 || l.P99 < l.Median || l.Max < l.P99 {
		t.Errorf("latency %+v", l)
	}
}

// TestFailuresAreToldApart connects to servers that do everything but answer.
func TestFailuresAreToldApart(t *testing.T) {
	gone := listen(t)
	_ = gone.Close()
	for want, do := range map[Failure]func(net.Conn){
		Refused:  nil,
		TimedOut: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		Reset: func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_ = c.(*net.TCPConn).SetLinger(0)
		},
		Closed: func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) },
		Other: func(c net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(c))
			fmt.Fprint(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			l := gone
			if do != nil {
				l = listen(t)
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() { defer c.Close(); do(c) }()
					}
				}()
			}
			for _, c := range []Client{{Rate: 1000}, {Long: 2, Every: time.Millisecond}} {
				c.Targets, c.Count = []string{l.Addr().String()}, 4
				if want != TimedOut {
					c.Timeout = 10 * time.Second
				}
				var told atomic.Int32
				c.Failed = func(error) { told.Add(1) }
				if r := runClient(t, c); r.Connections != 4 || told.Load() != 4 || !cmp.Equal(r.Failed, Failures{want: 4}) || r.Broken.Total() != 0 {
					t.Errorf("%+v: %+v", c, r)
				}
			}
		})
	}
}

func TestErrorsHaveTheirClass(t *testing.T) {
	for err, want := range map[error]Failure{
		syscall.ENETUNREACH: Unreachable, syscall.EHOSTUNREACH: Unreachable, syscall.EPIPE: Reset, syscall.ETIMEDOUT: TimedOut,
		io.ErrUnexpectedEOF: Closed, errors.New("503"): Other,
	} {
		if got := classify(fmt.Errorf("read: %w", err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// TestLongConnectionsThatBreakAreReplaced ends one of two servers while it has connections.
func TestLongConnectionsThatBreakAreReplaced(t *testing.T) {
	l := listen(t)
	stop := start(t, &Server{Name: "old"}, l)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan *Result, 1)
	c := &clientRun{Client: &Client{Targets: []string{l.Addr().String()}, Long: 3, Every: time.Millisecond, Timeout: 10 * time.Second}, recorder: newRecorder()}
	go func() { c.keep(ctx); done <- c.finish() }()
	connected := func(server string) {
		t.Helper()
		testenv.Eventually(t, "3 connections to "+server, func() (ok bool) {
			c.record(func() { ok = c.result.Servers[server] >= 3 })
			return ok
		})
	}
	connected("old")
	stop()
	again, err := net.Listen("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer start(t, &Server{Name: "new"}, again)()
	connected("new")
	cancel()
	r := <-done
	if r.Broken.Total() != 3 || r.Servers["old"] != 3 || r.Servers["new"] != 3 || r.Connections != 6+r.Failed.Total() {
		t.Errorf("%+v", r)
	}
}

func TestServerDrains(t *testing.T) {
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- (&Server{Name: "a", Drain: time.Minute}).Serve(ctx, l) }()
	cancel()
	to := Client{Targets: []string{l.Addr().String()}, Rate: 1000, Count: 1, Timeout: 10 * time.Second}
	if r := runClient(t, to); r.Servers["a"] != 1 {
		t.Errorf("while it drains: %+v", r)
	}
	select {
	case err := <-ended:
		t.Errorf("ended before a minute had passed: %v", err)
	default:
	}

	l = listen(t)
	start(t, &Server{Name: "b"}, l)()
	to.Targets = []string{l.Addr().String()}
	if r := runClient(t, to); r.Failed[Refused] != 1 {
		t.Errorf("after the end: %+v", r)
	}
}

func TestResultsAreAdded(t *testing.T) {
	a := &Result{Connections: 2, Failed: Failures{Refused: 1}, Servers: map[string]int{"a": 1}, Latency: Latency{1, 5, 6}, Seconds: []Second{{Failed: Failures{Refused: 1}}}}
	b := &Result{Connections: 3, Failed: Failures{Reset: 1, Refused: 1}, Servers: map[string]int{"b": 1}, Latency: Latency{2, 4, 9}, Seconds: []Second{{}, {Servers: map[string]int{"b": 1}}}}
	a.Add(b)
	want := &Result{
		Connections: 5, Failed: Failures{Refused: 2, Reset: 1}, Servers: map[string]int{"a": 1, "b": 1}, Latency: Latency{2, 5, 9},
		Seconds: []Second{{Failed: Failures{Refused: 1}}, {Servers: map[string]int{"b": 1}}},
	}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, c := range []Client{
		{}, {Targets: []string{"10.0.0.1"}, Rate: 1, Timeout: 1}, {Targets: []string{"a:1"}, Timeout: 1}, {Targets: []string{"a:1"}, Rate: 1, Long: 1, Timeout: 1},
		{Targets: []string{"a:1"}, Long: 1, Timeout: 1}, {Targets: []string{"a:1"}, Rate: 1}, {Targets: []string{"a:1"}, Rate: -1, Timeout: 1},
	} {
		if _, err := c.Run(t.Context()); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}
