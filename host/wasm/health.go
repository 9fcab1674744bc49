package wasm

import "time"

const (
	strike     = 16 // what a failure adds to the score; a good answer takes 1 away
	firstDelay = time.Second
	maxDelay   = 5 * time.Minute
)

// health decides when a plugin that fails is left alone. Failures in a row suspend it, as do failures among good
// answers when more than one in 16 fails. Times are those of requests, in Unix milliseconds.
type health struct {
	score int
	level int   // suspensions without a full recovery between them
	at    int64 // of the last failure
	until int64 // 0: not suspended
	last  error
}

// suspended gives how long the plugin is still suspended at now. When the clock was put back before the failure the
// suspension ends: waiting could take for ever.
func (h *health) suspended(now int64) time.Duration {
	if h.until == 0 {
		return 0
	}
	if now >= h.until || now < h.at {
		h.until = 0
		return 0
	}
	return time.Duration(h.until-now) * time.Millisecond
}

func (h *health) good() {
	if h.score > 0 {
		h.score--
	}
	if h.score == 0 {
		h.level = 0
	}
}

// bad notes a failure and gives how long to wait before asking again.
func (h *health) bad(now int64, allowed int, err error) time.Duration {
	h.at, h.last = now, err
	h.score += strike
	if h.score < strike*allowed {
		return firstDelay
	}
	delay := min(firstDelay<<min(h.level, 16), maxDelay)
	h.level++
	h.score = strike * (allowed - 1) // one more failure suspends it again
	h.until = now + delay.Milliseconds()
	return delay
}
