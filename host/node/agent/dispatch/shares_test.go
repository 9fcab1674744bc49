package dispatch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestAnyMinuteStaysBelowTheLimit lets plugins with random habits use all that they get.
func TestAnyMinuteStaysBelowTheLimit(t *testing.T) {
	const percent, longest = 10, 20 * time.Millisecond
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(1000, 0)
		s := newShares(percent, now)
		var names []string
		for i := range 1 + r.IntN(6) {
			names = append(names, fmt.Sprint("p", i))
		}
		s.set(names, now)
		type use struct {
			at  time.Time
			cpu time.Duration
		}
		var window []use
		sum, largest := time.Duration(0), time.Duration(0)
		for end := now.Add(5 * time.Minute); now.Before(end); now = now.Add(5 * time.Millisecond) {
			if r.IntN(2000) == 0 {
				now = now.Add(time.Duration(r.IntN(60)) * time.Second) // idle
			}
			for i, name := range names {
				if s.available(name, now) > 0 || i > 0 && r.IntN(3) == 0 {
					continue
				}
				cpu := time.Duration(r.Int64N(int64(longest)))
				s.charge(name, cpu, now)
				window, sum = append(window, use{now, cpu}), sum+cpu
			}
			for len(window) > 0 && now.Sub(window[0].at) >= time.Minute {
				sum -= window[0].cpu
				window = window[1:]
			}
			largest = max(largest, sum)
		}
		if most := 6 * time.Second; largest > most {
			t.Fatalf("seed %d: %d plugins used %s in a minute, more than %s", seed, len(names), largest, most)
		}
		if least := 3 * time.Second; largest < least {
			t.Fatalf("seed %d: %d plugins used only %s in a minute", seed, len(names), largest)
		}
	}
}

// TestPluginNeverWaitsBecauseOfAnother: one plugin uses all CPU time that it can get, the other less than its share.
func TestPluginNeverWaitsBecauseOfAnother(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newShares(10, now)
	s.set([]string{"greedy", "modest"}, now)
	used := time.Duration(0)
	for i := range 60_000 { // 10 min
		now = now.Add(10 * time.Millisecond)
		if s.available("greedy", now) == 0 {
			s.charge("greedy", 20*time.Millisecond, now)
			used += 20 * time.Millisecond
		}
		if i%100 == 0 {
			if wait := s.available("modest", now); wait > 0 {
				t.Fatalf("it waits %s after %s", wait, now.Sub(time.Unix(1000, 0)))
			}
			s.charge("modest", 20*time.Millisecond, now) // 2 % of a core
		}
	}
	if used < 15*time.Second { // 2.5 % of a core, and what the other one does not use
		t.Errorf("the other one used only %s", used)
	}
}

// TestEvaluationOfALargeClusterDoesNotWait: each of three plugins is called for 10,000 Services of ten endpoints, twice in half a
// minute, as at the start and after a change of the configuration. A call takes twice the CPU time of the bundled plugins.
func TestEvaluationOfALargeClusterDoesNotWait(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newShares(10, now)
	names := []string{"a", "b", "c"}
	s.set(names, now)
	for range 2 {
		for i := range 30_000 {
			if wait := s.available(names[i%3], now); wait > 0 {
				t.Fatalf("call %d waits for %s", i, wait)
			}
			s.charge(names[i%3], 10*time.Microsecond+perCall+10*perEndpoint, now)
			now = now.Add(30 * time.Microsecond)
		}
		now = now.Add(30 * time.Second)
	}
}

func TestSharesFollowPlugins(t *testing.T) {
	now := time.Unix(1000, 0)
	s := newShares(10, now)
	s.set([]string{"a"}, now)
	s.charge("a", 10*time.Second, now)
	wait := s.available("a", now)
	s.set([]string{"a", "b"}, now)
	if later := s.available("a", now); later < wait*19/10 {
		t.Errorf("%s with half the share, %s before: a plugin owes what it has used", later, wait)
	}
	if s.available("b", now) > 0 {
		t.Error("a new plugin waits")
	}
	s.limit(0)
	if s.available("a", now) > 0 {
		t.Error("it waits without a limit")
	}
}
