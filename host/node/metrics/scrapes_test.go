package metrics

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestSlowScrapesAreBounded: clients that do not read hold a bounded number of bytes and keep no other client waiting.
func TestSlowScrapesAreBounded(t *testing.T) {
	const size = 8 << 20 // more than the kernel buffers for a client
	text := make([]byte, size)
	var now, most, ended atomic.Int32
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		w.Header().Set("X-Page", "yes")
		_, _ = w.Write(text)
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r)
		ended.Add(1)
	}))
	defer server.Close()
	const slow = 12
	for range slow {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	const fit = maxPageBytes / size
	testenv.Eventually(t, "slow responses are aborted", func() bool { return ended.Load() >= slow-fit }, func() string { return fmt.Sprintf("%d, want %d", ended.Load(), slow-fit) })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil || n != size || resp.Header.Get("X-Page") != "yes" || resp.ContentLength != size {
		t.Errorf("a client that reads: %d bytes, %v, %v", n, err, resp.Header)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes > maxPageBytes || len(s.writing) > fit {
		t.Errorf("%d responses, %d bytes are being written", len(s.writing), s.bytes)
	}
	if most.Load() > maxGathering {
		t.Errorf("%d scrapes collected at once", most.Load())
	}
}
