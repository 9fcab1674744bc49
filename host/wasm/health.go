package wasm

import "time"

const (
	penalty       = 16 // what a failure adds to the score; a good answer takes 1 away
	minSuspension = time.Second
	maxSuspension = 5 * time.Minute
)

// circuitBreaker decides when a plugin that fails is left alone. Failures in a row suspend it, as do failures among good
// answers when more than one in 16 fails. Times are those of requests, in Unix milliseconds.
type circuitBreaker struct {
	score     int
	trips     int   // suspensions without a full recovery between them
	failedAt  int64 // of the last failure
	openUntil int64 // 0: not suspended
	lastErr   error
}

// remaining gives how long the plugin is still suspended at now. When the clock was put back before the failure the
// suspension ends: waiting could take for ever.
func (h *circuitBreaker) remaining(now int64) time.Duration {
	if h.openUntil == 0 {
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

// failure notes a failure and gives how long to wait before asking again.
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
