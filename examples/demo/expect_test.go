package main

import (
	"math"
	"testing"
)

func podsOf(a, b, c int, states ...condition) []pod {
	var out []pod
	for zone, n := range map[string]int{"a": a, "b": b, "c": c} {
		for i := range n {
			p := pod{name: zone + string(rune('1'+i)), zone: zone, state: ready}
			if zone == "a" && i < len(states) {
				p.state = states[i]
			}
			out = append(out, p)
		}
	}
	return out
}

func TestExpectedShares(t *testing.T) {
	even := map[string]float64{"a": 8000, "b": 8000, "c": 8000}
	for _, c := range []struct {
		name string
		pods []pod
		part float64
		want map[string]float64
	}{
		{"a balanced zone keeps all", podsOf(3, 3, 3), 0, map[string]float64{"a1": 1. / 3, "b1": 0}},
		{"a third of the endpoints' share is missing", podsOf(1, 3, 3), 0, map[string]float64{"a1": 3. / 7, "b1": 2. / 21, "c3": 2. / 21}},
		{"endpoints that are not ready do not count", podsOf(2, 3, 3, notReady), 0, map[string]float64{"a1": 0, "a2": 3. / 7, "b1": 2. / 21}},
		{"more than its share", podsOf(4, 3, 3), 0, map[string]float64{"a4": .25, "c1": 0}},
		{"one drains at half", podsOf(3, 3, 3, terminating), .5, map[string]float64{"a1": 3. / 17, "a2": 6. / 17, "b1": 1. / 51}},
		{"one has drained", podsOf(3, 3, 3, terminating), 0, map[string]float64{"a1": 0, "a2": .375, "b1": .25 / 6}},
	} {
		got := expected("a", even, c.pods, c.part)
		for pod, want := range c.want {
			if math.Abs(got[pod]-want) > 1e-12 {
				t.Errorf("%s: %s gets %.4f, want %.4f", c.name, pod, got[pod], want)
			}
		}
		sum := 0.0
		for _, s := range got {
			sum += s
		}
		if math.Abs(sum-1) > 1e-12 {
			t.Errorf("%s: shares sum to %g", c.name, sum)
		}
	}
}

func TestDeviates(t *testing.T) {
	for _, c := range []struct {
		measured, expected float64
		want               bool
	}{
		{.43, .4286, false}, {.45, .4286, false}, {.5, .4286, true}, {.1, .0952, false}, {.14, .0952, true},
		{0, 0, false}, {.0003, 0, true}, {0, .1, true},
	} {
		if got := deviates(c.measured, c.expected, 4500); got != c.want {
			t.Errorf("measured %g, expected %g: %v, want %v", c.measured, c.expected, got, c.want)
		}
	}
}
