package wasm

import "strings"

// circuitBreakers are those of the namespaces that an instance of their own answers, or "" for all. Only those with recent failures
// exist.
type circuitBreakers map[string]*circuitBreaker

// of returns the circuit breaker of a namespace, and makes one if there is none.
func (b *circuitBreakers) of(namespace string) *circuitBreaker {
	c := (*b)[namespace]
	if c == nil {
		c = &circuitBreaker{}
		if *b == nil {
			*b = circuitBreakers{}
		}
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

// open reports whether one is open.
func (b circuitBreakers) open() bool {
	for _, c := range b {
		if c.openUntil != 0 {
			return true
		}
	}
	return false
}
