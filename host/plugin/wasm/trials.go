package wasm

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// Fuel for configuring settings that Services have set and the plugin has not seen before, with that of the instances for it. A
// namespace has a bucket of its own, and all have one together, so that whoever writes settings again and again delays new
// settings only, and mostly those of the same namespace. With the default of Limits.ConfigureFuel, 100 M, a namespace has 1 G at
// once and 10 M a second. A unit takes about a nanosecond.
const (
	trialBurst      = 10 // of a namespace, in units of Limits.ConfigureFuel
	trialSeconds    = 10 // in which a namespace gets Limits.ConfigureFuel
	namespacesAtOne = 5  // namespaces whose fuel all have together
)

// trials are the buckets of a plugin. Times are those of requests, in Unix milliseconds.
type trials struct {
	unit       int64 // Limits.ConfigureFuel
	all        bucket
	namespaces map[string]*bucket // those that are not full, and some others
	sweepAt    int                // size of namespaces at which full ones are deleted
}

type bucket struct {
	used int64 // fuel, 0: the bucket is full
	at   int64
}

// refill adds what has come in since the last time, at a rate of fuel a second.
func (b *bucket) refill(now, rate int64) {
	if now > b.at { // a clock that has gone back adds nothing
		passed := min(now-b.at, 1_000_000)
		b.used = max(0, b.used-passed*rate/1000)
	}
	b.at = now
}

// wait returns how long settings of a namespace have to wait to be tried, 0 if they need not.
func (t *trials) wait(namespace string, now int64) time.Duration {
	burst, rate := t.unit*trialBurst, max(1, t.unit/trialSeconds)
	t.all.refill(now, namespacesAtOne*rate)
	wait := delay(t.all.used-namespacesAtOne*burst, namespacesAtOne*rate)
	b := t.namespaces[namespace]
	if b == nil {
		if t.namespaces == nil {
			t.namespaces = map[string]*bucket{}
		}
		if len(t.namespaces) >= t.sweepAt {
			maps.DeleteFunc(t.namespaces, func(_ string, b *bucket) bool { b.refill(now, rate); return b.used == 0 })
			t.sweepAt = 64 + 2*len(t.namespaces)
		}
		b = &bucket{at: now}
		t.namespaces[strings.Clone(namespace)] = b
	}
	b.refill(now, rate)
	return max(wait, delay(b.used-burst, rate))
}

// delay returns how long it takes at a rate until a bucket that is overdrawn has fuel again.
func delay(over, rate int64) time.Duration {
	if over < 0 {
		return 0
	}
	return time.Duration(over*1000/rate+1) * time.Millisecond
}

// charge takes fuel after wait has returned 0.
func (t *trials) charge(namespace string, fuel int64) {
	t.all.used += fuel
	if b := t.namespaces[namespace]; b != nil {
		b.used += fuel
	}
}

// throttledError is the error of new settings that have to wait.
type throttledError struct{ wait time.Duration }

// Error implements error.
func (e *throttledError) Error() string {
	return fmt.Sprintf("new settings wait for %s: those of the namespace, or of all Services, have used up their fuel", e.wait.Round(time.Millisecond))
}

// trialIdle is after how long without a trial the instances for it are closed, in milliseconds.
const trialIdle = 60_000

func (p *Plugin) dropTrials() {
	if p.triedAt == 0 || p.now < p.triedAt+trialIdle {
		return
	}
	p.triedAt = 0
	for key, g := range p.pool.guests {
		if key.trial {
			p.drop(g)
		}
	}
}
