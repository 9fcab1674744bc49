package replay

import (
	"math"
	"time"
)

// maxBuckets bounds a Series. It is even.
const maxBuckets = 240

// Series is how much the runs differ over time, in steps of the same length from the beginning of the recording.
type Series struct {
	StepSeconds float64 `json:"stepSeconds"`
	// Divergence is the mean share of the new connections to all Service ports that goes elsewhere, 0 to 1; Differing is the
	// largest number of Service ports that differ at one time.
	Divergence []float64 `json:"divergence"`
	Differing  []int     `json:"differing"`
}

// series adds up a step function in buckets, which become larger as time goes on.
type series struct {
	step    time.Duration
	buckets []bucket
	now     float64 // sum of the divergences
	differ  int     // Service ports
	at      time.Duration
}

type bucket struct {
	integral float64 // of the sum, over seconds
	most     int     // Service ports that differ at one time
}

// pass adds the time up to at.
func (s *series) pass(at time.Duration) {
	if s.step == 0 {
		s.step = time.Second
	}
	for s.at < at {
		i := int(s.at / s.step)
		for i >= maxBuckets {
			s.halve()
			i = int(s.at / s.step)
		}
		for len(s.buckets) <= i {
			s.buckets = append(s.buckets, bucket{})
		}
		end := min(at, time.Duration(i+1)*s.step)
		b := &s.buckets[i]
		b.integral += s.now * (end - s.at).Seconds()
		b.most = max(b.most, s.differ)
		s.at = end
	}
}

// halve makes one bucket of two.
func (s *series) halve() {
	for i := range s.buckets {
		b := s.buckets[i]
		if i%2 == 0 {
			s.buckets[i/2] = b
			continue
		}
		s.buckets[i/2].integral += b.integral
		s.buckets[i/2].most = max(s.buckets[i/2].most, b.most)
	}
	s.buckets = s.buckets[:(len(s.buckets)+1)/2]
	s.step *= 2
}

// set changes the divergence of a Service port.
func (s *series) set(before, after float64) {
	s.now = max(0, s.now+after-before)
	if before == 0 && after > 0 {
		s.differ++
	}
	if before > 0 && after == 0 {
		if s.differ--; s.differ == 0 {
			s.now = 0 // without what rounding has left
		}
	}
}

// finish returns the Series of a replay with a number of Service ports.
func (s *series) finish(ports int) Series {
	out := Series{StepSeconds: s.step.Seconds(), Divergence: []float64{}, Differing: []int{}}
	for i, b := range s.buckets {
		length := min(s.step, s.at-time.Duration(i)*s.step).Seconds()
		out.Divergence = append(out.Divergence, math.Min(1, b.integral/length/float64(max(1, ports))))
		out.Differing = append(out.Differing, b.most)
	}
	return out
}
