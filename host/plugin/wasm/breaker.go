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

// circuitBreaker suspends a plugin after consecutive failures, or if more than one call in 16 fails. Times are those of
// requests, in Unix milliseconds.
type circuitBreaker struct {
	score     int
	trips     int   // suspensions since the score was last 0
	failedAt  int64 // of the last failure
	openUntil int64 // 0: not suspended
	lastErr   error
}

// remaining returns how long the plugin is still suspended at now, 0 if it is not. If the clock has gone back to before
// the failure, the suspension ends, as it might otherwise never do.
func (h *circuitBreaker) remaining(now int64) time.Duration {
	if h == nil || h.openUntil == 0 {
		return 0
	}
	if now >= h.openUntil || now < h.failedAt {
		h.openUntil = 0
		return 0
	}
	return time.Duration(h.openUntil-now) * time.Millisecond
}

func (h *circuitBreaker) success() {
	if h.score > 0 {
		h.score--
	}
	if h.score == 0 {
		h.trips = 0
	}
}

// failure records a failure and returns how long to wait before the next call.
func (h *circuitBreaker) failure(now int64, allowed int, err error) time.Duration {
	h.failedAt, h.lastErr = now, err
	h.score += penalty
	if h.score < penalty*allowed {
		return minSuspension
	}
	delay := min(minSuspension<<min(h.trips, 16), maxSuspension)
	h.trips++
	h.score = penalty * (allowed - 1) // one more failure suspends it again
	h.openUntil = now + delay.Milliseconds()
	return delay
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
