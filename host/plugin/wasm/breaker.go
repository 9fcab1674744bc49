package wasm

import (
	"errors"
	"time"
)

const (
	penalty       = 16 // added to the score by a failure; a success subtracts 1
	minSuspension = time.Second
	maxSuspension = 5 * time.Minute
)

// suspension is a time without calls. Times are those of requests, in Unix milliseconds.
type suspension struct {
	trips     int   // without a success
	failedAt  int64 // of the last failure
	openUntil int64 // 0: not suspended
}

// remaining returns how long it lasts from now on and a time more, 0 if it does not. If the clock has gone back to before the
// failure, it ends, as it might otherwise never do.
func (s *suspension) remaining(now int64, more time.Duration) time.Duration {
	if s.openUntil == 0 || now < s.failedAt {
		return 0
	}
	return max(0, time.Duration(s.openUntil-now)*time.Millisecond+more)
}

// trip begins a suspension of at least a time, twice as long as the last one, and returns how long it is.
func (s *suspension) trip(now int64, least time.Duration) time.Duration {
	delay := min(max(minSuspension<<min(s.trips, 16), least), maxSuspension)
	s.trips++
	s.openUntil = now + delay.Milliseconds()
	return delay
}

// circuitBreaker suspends a Service port after consecutive failures, or if more than one of its calls in 16 fails.
type circuitBreaker struct {
	suspension
	score    int
	failures uint64
	lastErr  error
}

func (h *circuitBreaker) success() {
	if h.score > 0 {
		h.score--
	}
	if h.score == 0 {
		h.trips = 0
	}
}

// failure records a failure and returns how long to wait before the next call, at least a given time.
func (h *circuitBreaker) failure(now int64, allowed int, least time.Duration, err error) time.Duration {
	h.failedAt, h.lastErr = now, err
	h.failures++
	h.score += penalty
	if h.score < penalty*allowed {
		return max(minSuspension, least)
	}
	h.score = penalty * (allowed - 1) // one more failure suspends it again
	return h.trip(now, least)
}

var errInstances = errors.New("it has needed too many new instances")

// instanceRate limits how often a plugin gets a new instance, which costs more than most calls. Times are those of requests.
type instanceRate struct {
	started bool
	credit  int64 // milliseconds
	at      int64
}

// instanceBurst is the number of instances that may be created at once after a time without any.
const instanceBurst = 512

// wait takes an instance and returns 0, or returns how long to wait for it.
func (r *instanceRate) wait(now int64, perSecond int) time.Duration {
	price := int64(1000 / perSecond)
	switch {
	case !r.started:
		r.started, r.credit = true, price*instanceBurst
	case now > r.at: // a clock that has gone back adds nothing
		r.credit = min(r.credit+now-r.at, price*instanceBurst)
	}
	r.at = now
	if r.credit < price {
		return time.Duration(price-r.credit) * time.Millisecond
	}
	r.credit -= price
	return 0
}
