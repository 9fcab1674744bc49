package wasm

import (
	"maps"
	"strings"
)

// circuitBreakers are those of the namespaces that an instance of their own answers, or "" for all. Only those with recent failures
// exist.
type circuitBreakers map[string]*circuitBreaker

// of returns the circuit breaker of a namespace at now, and makes one if there is none. Those of namespaces without calls for a long
// time, which may no longer exist, are deleted then.
func (b *circuitBreakers) of(namespace string, now int64) *circuitBreaker {
	c := (*b)[namespace]
	if c == nil {
		c = &circuitBreaker{}
		if *b == nil {
			*b = circuitBreakers{}
		}
		maps.DeleteFunc(*b, func(_ string, c *circuitBreaker) bool { return now-c.failedAt > 2*maxSuspension.Milliseconds() })
		(*b)[strings.Clone(namespace)] = c
	}
	return c
}

func (b circuitBreakers) success(namespace string) {
	if c := b[namespace]; c != nil {
		if c.success(); c.score == 0 {
			delete(b, namespace)
		}
	}
}

// open reports whether one is open at now.
func (b circuitBreakers) open(now int64) bool {
	for _, c := range b {
		if c.openUntil > now {
			return true
		}
	}
	return false
}
