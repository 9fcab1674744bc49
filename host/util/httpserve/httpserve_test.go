package httpserve_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// retryingServer is a running ListenAndServeRetry; a tick lets it retry.
type retryingServer struct {
	log    *testenv.Buffer
	ticks  chan time.Time
	waits  chan time.Duration
	ready  chan net.Addr
	failed chan error
	end    func()
}

func start(t *testing.T, address string) *retryingServer {
	return startWith(t, address, httpserve.NewLimiter(10, nil))
}

func startWith(t *testing.T, address string, limiter *httpserve.Limiter) *retryingServer {
	r := &retryingServer{
		log: &testenv.Buffer{}, ticks: make(chan time.Time), waits: make(chan time.Duration, 100),
		ready: make(chan net.Addr, 1), failed: make(chan error, 10),
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		httpserve.ListenAndServeRetry(ctx, httpserve.Options{
			Name: "test server", Network: "tcp4", Address: address,
			Handler:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }),
			Limiter:  limiter,
			Log:      slog.New(slog.NewTextHandler(r.log, nil)),
			After:    func(d time.Duration) <-chan time.Time { r.waits <- d; return r.ticks },
			OnListen: func(a net.Addr) { r.ready <- a },
			OnError:  func(err error) { r.failed <- err },
		})
	}()
	r.end = func() { cancel(); <-done }
	t.Cleanup(r.end)
	return r
}

func get(t *testing.T, addr string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestServerWithoutALimiterHasOneOfItsOwn(t *testing.T) {
	r := startWith(t, "127.0.0.1:0", nil)
	addr := (<-r.ready).String()
	held, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := held.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for range 40 { // more than it keeps
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if text := get(t, addr); text != "here" {
		t.Errorf("answers %q", text)
	}
	if _, err := held.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection was not closed: %v", err)
	}
}

func TestPortInUseIsLoggedOnceAndRetried(t *testing.T) {
	squatter, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := squatter.Addr().String()
	r := start(t, addr)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if got := <-r.waits; got != want {
			t.Fatalf("waits %s, want %s", got, want)
		}
		if want != 4*time.Second {
			r.ticks <- time.Time{}
		}
	}
	if err := <-r.failed; len(r.failed) != 0 || !strings.Contains(err.Error(), "test server: listen tcp4 "+addr) {
		t.Errorf("reported %v, and %d more", err, len(r.failed))
	}
	if n := strings.Count(r.log.String(), "address already in use"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
	squatter.Close()
	r.ticks <- time.Time{}
	<-r.ready
	if got := get(t, addr); got != "here" {
		t.Errorf("got body %q", got)
	}
	if !strings.Contains(r.log.String(), "listening after retries") {
		t.Errorf("recovery is not logged:\n%s", r.log)
	}
}

func TestCancelClosesListenerAndConnections(t *testing.T) {
	r := start(t, "127.0.0.1:0")
	addr := (<-r.ready).String()
	c, err := net.Dial("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.end()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the connection is still open: %v", err)
	}
	if c, err := net.Dial("tcp4", addr); err == nil {
		c.Close()
		t.Error("still listening")
	}
	if r.log.String() != "" {
		t.Errorf("cancellation is logged as a failure:\n%s", r.log)
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}
