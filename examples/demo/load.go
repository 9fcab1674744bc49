package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// One measurement.
const (
	connections    = 4500             // at least 4000 per step
	workers        = 8                // concurrent, in the client's namespace
	connectTimeout = 10 * time.Second // one connection, from its SYN to the server's name
)

// load opens connections with concurrent workers and counts them by server.
type load struct {
	began time.Time

	mu     sync.Mutex
	counts map[string]int // by name of the server
	failed int
	first  error // of the failures
}

// result is the result of a load.
type result struct {
	counts map[string]int
	total  int // answered
	failed int
	first  error
	took   time.Duration
}

// start opens n connections from a host to an address and closes done afterwards. Use snapshot meanwhile.
func start(ctx context.Context, from *testnet.Host, to netip.AddrPort, n int) (l *load, done <-chan struct{}) {
	l = &load{began: time.Now(), counts: map[string]int{}}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for next.Add(1) <= int64(n) && ctx.Err() == nil {
				a, err := from.Ask("tcp", to, connectTimeout)
				l.count(a.Server, err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		wg.Wait()
		close(ended)
	}()
	return l, ended
}

func (l *load) count(server string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.counts[server]++
		return
	}
	if l.failed == 0 {
		l.first = fmt.Errorf("after %.1f s: %w", time.Since(l.began).Seconds(), err)
	}
	l.failed++
}

// snapshot returns the result so far.
func (l *load) snapshot() result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := result{counts: maps.Clone(l.counts), failed: l.failed, first: l.first, took: time.Since(l.began)}
	for _, n := range r.counts {
		r.total += n
	}
	return r
}
