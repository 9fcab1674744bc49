package wasm

import (
	"maps"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// circuitBreakers are those with recent failures.
type circuitBreakers map[breakerKey]*circuitBreaker

// breakerKey identifies a circuit breaker: that of a namespace with an instance of its own, or of "" for all, and in either case
// another one of the Services of a namespace that have settings of their own.
type breakerKey struct {
	namespace string
	own       bool
}

func breakerOf(key instanceKey, req *abi.Request) breakerKey {
	if req.Settings.Own {
		return breakerKey{req.Namespace, true}
	}
	return breakerKey{key.namespace, false}
}

// of returns the circuit breaker with a key at now, and makes one if there is none. Those of namespaces without calls for a long
// time, which may no longer exist, are deleted then.
func (b *circuitBreakers) of(key breakerKey, now int64) *circuitBreaker {
	c := (*b)[key]
	if c == nil {
		c = &circuitBreaker{}
		if *b == nil {
			*b = circuitBreakers{}
		}
		maps.DeleteFunc(*b, func(_ breakerKey, c *circuitBreaker) bool { return now-c.failedAt > 2*maxSuspension.Milliseconds() })
		key.namespace = strings.Clone(key.namespace)
		(*b)[key] = c
	}
	return c
}

func (b circuitBreakers) success(key breakerKey) {
	if c := b[key]; c != nil {
		if c.success(); c.score == 0 {
			delete(b, key)
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
