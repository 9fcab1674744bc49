package dispatch

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Of the CPU time that plugins may use in a minute, half is for a steady rate and burstShare for bursts, such as the start with
// thousands of Services. Shadows have a burst of their own. The rest is for calls that end after their share is used up.
const (
	steadyShare      = 0.5
	burstShare       = 0.4
	shadowBurstShare = 0.05
	// shadowWait is the minimum wait of shadows for CPU time: whether any is left depends on the calls of other plugins.
	shadowWait = 10 * time.Millisecond
)

// perCall and perEndpoint are added to the CPU time of each call for the work of the engine that it causes: building the request,
// planning and programming the answer. Measured for a Service of 10 endpoints, in CPU time: 3 µs for the call (BenchmarkCall),
// 7 µs for planning (BenchmarkEndpointUpdate of package planner), 17 to 22 µs for programming an endpoint that changes
// (BenchmarkReplaceEndpoint of package nftables).
const (
	perCall     = 20 * time.Microsecond
	perEndpoint = time.Microsecond
)

// shares are token buckets of CPU time. Each plugin has one of its own; what does not fit into a full one flows into a common
// one, from which plugins borrow that have used up theirs. So a plugin never waits because of another one, and a plugin that is
// the only one to be called can use most of the burst. What does not fit into the common one either is for shadows: they use only
// what others leave.
type shares struct {
	rate    float64       // of all plugins, CPU seconds per second; 0: no limit
	burst   time.Duration // of all plugins
	own     map[string]time.Duration
	common  time.Duration
	shadow  time.Duration // of all shadows
	updated time.Time
}

func newShares(percent int, now time.Time) shares {
	s := shares{own: map[string]time.Duration{}, updated: now}
	s.limit(percent)
	s.common, s.shadow = s.burst/2, s.shadowBurst()
	return s
}

func (s *shares) shadowBurst() time.Duration {
	return time.Duration(float64(s.burst) * shadowBurstShare / burstShare)
}

// limit sets the CPU time of all plugins, in percent of one core. Call set afterwards.
func (s *shares) limit(percent int) {
	all := float64(percent) / 100
	s.rate = all * steadyShare
	s.burst = time.Duration(all * burstShare * float64(time.Minute))
	s.common, s.shadow = min(s.common, s.burst/2), min(s.shadow, s.shadowBurst())
}

// ownBurst is the size of a plugin's bucket. The common one has the size of all of them.
func (s *shares) ownBurst() time.Duration { return s.burst / 2 / time.Duration(max(1, len(s.own))) }

// set divides the shares among these plugins.
func (s *shares) set(names []string, now time.Time) {
	s.refill(now)
	old := s.own
	s.own = map[string]time.Duration{}
	for _, name := range names {
		s.own[name] = 0
	}
	full := s.ownBurst()
	for name := range s.own {
		tokens, ok := old[name]
		if !ok {
			tokens = full
		}
		s.own[name] = min(tokens, full)
	}
}

func (s *shares) add(name string, now time.Time) {
	if _, ok := s.own[name]; ok {
		return
	}
	names := []string{name}
	for n := range s.own {
		names = append(names, n)
	}
	s.set(names, now)
}

func (s *shares) refill(now time.Time) {
	passed := now.Sub(s.updated)
	s.updated = now
	if passed <= 0 {
		return
	}
	if len(s.own) == 0 {
		s.shadow += time.Duration(s.rate * float64(passed))
	}
	full, more := s.ownBurst(), time.Duration(s.rate*float64(passed)/float64(max(1, len(s.own))))
	for name, tokens := range s.own {
		tokens += more
		if tokens > full {
			s.common, tokens = s.common+tokens-full, full
		}
		s.own[name] = tokens
	}
	if over := s.common - s.burst/2; over > 0 {
		s.common -= over
		s.shadow += over
	}
	s.shadow = min(s.shadow, s.shadowBurst())
}

// available returns how long a plugin has to wait for CPU time, 0 if it has some.
func (s *shares) available(name string, now time.Time) time.Duration {
	if s.rate == 0 {
		return 0
	}
	if _, shadow := policy.CutShadow(name); shadow {
		s.refill(now)
		if s.shadow > 0 {
			return 0
		}
		return max(shadowWait, time.Duration(float64(-s.shadow)/s.rate))
	}
	s.add(name, now)
	s.refill(now)
	if s.common > 0 || s.own[name] > 0 {
		return 0
	}
	return time.Duration(float64(-s.own[name])*float64(len(s.own))/s.rate) + time.Millisecond
}

// charge takes CPU time from a plugin's bucket, then from the common one. What neither has, the plugin owes.
func (s *shares) charge(name string, cpu time.Duration, now time.Time) {
	if s.rate == 0 {
		return
	}
	if _, shadow := policy.CutShadow(name); shadow {
		s.refill(now)
		s.shadow -= cpu
		return
	}
	s.add(name, now)
	s.refill(now)
	tokens := s.own[name] - cpu
	if borrow := min(-tokens, s.common); borrow > 0 {
		s.common -= borrow
		tokens += borrow
	}
	s.own[name] = tokens
}
