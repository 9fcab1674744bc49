package policy

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// shadowSuffix cannot be part of the name of a plugin in a configuration.
const shadowSuffix = "/shadow"

// ShadowPlugin returns the name under which shadows call a plugin: the same module in instances of its own, with its own queue,
// suspension and statistics, so that what happens to a shadow has no effect on what is enforced.
func ShadowPlugin(name string) string { return name + shadowSuffix }

// CutShadow returns the name in the configuration of a plugin, and whether it is that of a shadow.
func CutShadow(plugin string) (name string, shadow bool) {
	return strings.CutSuffix(plugin, shadowSuffix)
}

// Shadow is what the shadow of a policy decides about a pool. It is not in force.
type Shadow struct {
	Evaluation
	// Weights are those of its answer; of the last good one while a call is pending. Nil: it fails, has not answered yet, or no
	// endpoint is eligible. Parallel to Input.Port.Endpoints.
	Weights []uint16
	// Divergence is the share of new connections that would go to other endpoints than with what is in force, 0 to 1. It is valid
	// if Compared.
	Divergence float64
	Compared   bool
	RequeueAt  time.Time // when to call Decide again because of the shadow; zero: only on a change
}

// Divergence returns the share of new connections that weights b would send to other endpoints than weights a, 0 to 1. It returns
// false if either has no weight. If both are not nil, they have the same length.
func Divergence(a, b []uint16) (share float64, ok bool) {
	sumA, sumB := total(a), total(b)
	if sumA == 0 || sumB == 0 {
		return 0, false
	}
	moved := 0.0
	for i := range a {
		moved += max(0, float64(b[i])/sumB-float64(a[i])/sumA)
	}
	return min(moved, 1), true
}

func total(weights []uint16) float64 {
	sum := 0
	for _, w := range weights {
		sum += int(w)
	}
	return float64(sum)
}

// decideShadow asks the shadow of a pool for the input of the decision d, and compares.
func (e *chains) decideShadow(m *poolState, in *Input, now time.Time, d *Decision, of pass) *Shadow {
	s, c := &Shadow{}, m.shadow
	defaults := defaultWeights(in)
	if !anyPositive(defaults) {
		e.stopWaiting(c)
		return s
	}
	answer, at, err := e.evaluate(c, &m.times, in, now, &s.Evaluation, of)
	s.RequeueAt = at
	switch {
	case err == errAsked:
		s.Err = err
		return s
	case err == nil:
		c.lastGood = answer
		s.Weights = answer.weights(in)
	case errors.Is(err, ErrPending):
		s.Weights = c.lastGood.applyTo(in, defaults)
	}
	if err != nil {
		s.Err = fmt.Errorf("policy %s: shadow: %s: %w", m.name, keyOf(in), err)
	}
	s.Divergence, s.Compared = Divergence(d.Weights, s.Weights)
	return s
}
