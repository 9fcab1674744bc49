package main

import (
	"slices"
	"sync"
	"time"
)

// failure is a class of failed connections.
type failure int

const (
	refused     failure = iota // the host of the endpoint refuses it
	reset                      // the endpoint resets it, at once or later
	hung                       // no answer within the timeout of the client
	unreachable                // anything else
	failures                   // their number
)

// recorder collects what becomes of connections over time. It belongs to the load while that runs; mark may be called by anyone.
type recorder struct {
	interval time.Duration // of samples

	began time.Time
	next  time.Time // of the next sample
	names []string  // of servers, in the order in which they appeared
	now   sample    // what happens before it
	ok    int       // short connections that went well
	longs int       // long connections that were opened
	shed  int       // long connections that were reset when open: their clients connect again
	total [failures]int
	last  time.Duration // of the last failure, since the beginning
	// lastBegan is when the last connection began of those that have failed before they were open, since the beginning.
	lastBegan time.Duration
	series    []sample

	mu    sync.Mutex
	marks []mark
}

// sample is what is true at a time, and what has happened since the sample before.
type sample struct {
	at     time.Duration // since the beginning
	open   []int         // connections by server
	failed [failures]int
	shed   int
}

// mark is something that the experiment did at a time.
type mark struct {
	at   time.Duration
	text string
}

func newRecorder(interval time.Duration) *recorder {
	now := time.Now()
	return &recorder{interval: interval, began: now, next: now.Add(interval)}
}

// mark records an action.
func (r *recorder) mark(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, mark{time.Since(r.began), text})
}

// opened counts a connection and returns the number of its server.
func (r *recorder) opened(name string, long bool) int {
	i := slices.Index(r.names, name)
	if i < 0 {
		i = len(r.names)
		r.names = append(r.names, name)
		r.now.open = append(r.now.open, 0)
	}
	r.now.open[i]++
	if long {
		r.longs++
	}
	return i
}

// closed counts the end of a connection.
func (r *recorder) closed(server int) { r.now.open[server]-- }

// failed counts a failed connection. An open long one that is reset counts apart: policies reset them on purpose.
func (r *recorder) failed(f failure, openLong bool) {
	if openLong && f == reset {
		r.shed++
		r.now.shed++
		return
	}
	r.total[f]++
	r.now.failed[f]++
	r.last = time.Since(r.began)
}

// tick takes a sample when it is due.
func (r *recorder) tick(now time.Time) {
	if now.Before(r.next) {
		return
	}
	s := r.now
	s.at, s.open = now.Sub(r.began), slices.Clone(s.open)
	r.series = append(r.series, s)
	r.now.failed, r.now.shed = [failures]int{}, 0
	r.next = now.Add(r.interval)
}

// failedTotal returns the number of connections that failed.
func (r *recorder) failedTotal() (n int) {
	for _, k := range r.total {
		n += k
	}
	return n
}

// connections returns the number of connections that were attempted and have ended or, if they are long, were opened.
func (r *recorder) connections() int { return r.ok + r.longs + r.failedTotal() }

// most returns the largest number of connections of a server at any time.
func (r *recorder) most() (largest int) {
	for _, s := range r.series {
		for _, n := range s.open {
			largest = max(largest, n)
		}
	}
	return largest
}

// endSamples is how many samples are the end: 5 s.
const endSamples = 20

// newShare returns the part of the connections at the end that is to other servers than the first ones.
func (r *recorder) newShare(first int) float64 {
	sum, later := 0, 0
	for _, s := range r.series[max(0, len(r.series)-endSamples):] {
		for i, n := range s.open {
			if sum += n; i >= first {
				later += n
			}
		}
	}
	return float64(later) / float64(max(1, sum))
}
