package metrics

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Bounds of concurrent scrapes.
const (
	maxGathering = 2        // scrapes that collect metrics; the others wait in turn
	maxPageBytes = 32 << 20 // of all responses that clients are reading
)

// scrapes bounds the CPU time and memory of concurrent scrapes. A response is collected whole before it is written, so that a
// client that reads slowly keeps no other one waiting. If the responses that are being written exceed maxPageBytes, the
// oldest ones are aborted.
type scrapes struct {
	collect   http.Handler
	gathering chan struct{}

	mu      sync.Mutex
	writing []*page // by age
	bytes   int
}

// page is the response to a scrape.
type page struct {
	header http.Header
	code   int
	body   bytes.Buffer
	abort  context.CancelFunc
}

func newScrapes(collect http.Handler) *scrapes {
	return &scrapes{collect: collect, gathering: make(chan struct{}, maxGathering)}
}

// ServeHTTP implements http.Handler.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := s.gather(r)
	if p == nil {
		return // the client has disconnected
	}
	aborted, abort := context.WithCancel(context.Background())
	defer abort()
	p.abort = abort
	s.begin(p)
	defer s.end(p)
	past := time.Unix(1, 0)
	stop := context.AfterFunc(aborted, func() { _ = http.NewResponseController(w).SetWriteDeadline(past) })
	defer stop()
	for key, values := range p.header {
		w.Header()[key] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(p.body.Len()))
	w.WriteHeader(p.code)
	_, _ = w.Write(p.body.Bytes()) // the client has disconnected, or is too slow
}

// gather collects a response, nil if the client has disconnected before its turn.
func (s *scrapes) gather(r *http.Request) *page {
	select {
	case s.gathering <- struct{}{}:
		defer func() { <-s.gathering }()
	case <-r.Context().Done():
		return nil
	}
	p := &page{header: http.Header{}, code: http.StatusOK}
	s.collect.ServeHTTP(p, r)
	return p
}

// begin records that a page is written, and aborts others that are too large together with it.
func (s *scrapes) begin(p *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes+p.body.Cap() > maxPageBytes && len(s.writing) > 0 {
		s.writing[0].abort()
		s.remove(s.writing[0])
	}
	s.writing = append(s.writing, p)
	s.bytes += p.body.Cap()
}

func (s *scrapes) end(p *page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(p)
}

// remove removes a page if it is still there. The caller holds the lock.
func (s *scrapes) remove(p *page) {
	for i, other := range s.writing {
		if other == p {
			s.writing = append(s.writing[:i], s.writing[i+1:]...)
			s.bytes -= p.body.Cap()
			return
		}
	}
}

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(code int) { p.code = code }

// Write implements http.ResponseWriter.
func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }
