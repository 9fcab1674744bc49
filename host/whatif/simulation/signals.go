package simulation

import (
	"math"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// signals is what a node counts of its connections to the endpoints of a Service: the expected number, rounded down, so that the
// nodes of a class count the same. It implements policy.Signals.
type signals struct {
	*outcomes.Tracker
	world    *world
	lifetime time.Duration // mean, of connections
	flows    map[model.EndpointKey]*flow
}

// flow is the connections to an endpoint.
type flow struct {
	rate     float64 // new connections per second
	due      float64 // part of a connection that is still to be opened
	counters outcomes.Counters
	late     []lateAnswers
	open     float64       // established connections
	at       time.Duration // of open and due
	present  bool          // the kernel has the endpoint
}

// lateAnswers are connections that are answered later.
type lateAnswers struct {
	at    time.Duration
	count uint64
}

func newSignals(w *world, lifetime time.Duration) *signals {
	return &signals{world: w, lifetime: lifetime, Tracker: outcomes.NewTracker(), flows: map[model.EndpointKey]*flow{}}
}

// advance opens and closes connections until t.
func (s *signals) advance(t time.Duration) {
	for key, f := range s.flows {
		f.advance(s.world.answers[key.Addr.Addr()], s.lifetime, t)
	}
}

// begin begins a new set of rates at t; set follows for each endpoint that the kernel has, then end.
func (s *signals) begin(t time.Duration) {
	s.advance(t)
	for _, f := range s.flows {
		f.present, f.rate = false, 0
	}
}

// set adds to the rate of an endpoint.
func (s *signals) set(key model.EndpointKey, rate float64, t time.Duration) {
	f := s.flows[key]
	if f == nil {
		f = &flow{at: t}
		s.flows[key] = f
	}
	f.present = true
	f.rate += rate
}

// end forgets endpoints that the kernel does not have any more.
func (s *signals) end() {
	for key, f := range s.flows {
		if !f.present {
			delete(s.flows, key)
		}
	}
}

// advance opens and closes connections until t, to an endpoint that answers as the list says.
func (f *flow) advance(list []answer, lifetime, t time.Duration) {
	var now answer
	for _, a := range list {
		if a.at > f.at {
			f.step(now, lifetime, min(a.at, t))
		}
		now = a
	}
	f.step(now, lifetime, t)
}

// step opens and closes connections until t. They are established if the endpoint answers.
func (f *flow) step(a answer, lifetime, t time.Duration) {
	if t <= f.at {
		return
	}
	d, l := (t - f.at).Seconds(), lifetime.Seconds()
	f.at = t
	f.due += f.rate * d
	left := math.Exp(-d / l)
	f.open *= left
	if a.kind == scenario.Answers || a.kind == scenario.Slow {
		f.open += f.rate * l * (1 - left)
	}
}

// read takes a reading of outcomes at t, and returns the endpoints with new failures.
func (s *signals) read(t time.Duration) (failed []model.EndpointKey) {
	s.advance(t)
	for key, f := range s.flows {
		f.count(s.world.answerAt(key.Addr.Addr(), t), t)
	}
	changes := s.Tracker.Update(s.world.start.Add(t), func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for key, f := range s.flows {
			if !yield(key, f.counters) {
				return
			}
		}
	})
	for i := range changes {
		if changes[i].Failed {
			failed = append(failed, changes[i].Key)
		}
	}
	return failed
}

// count counts the whole connections that are due, which the endpoint answers as it does now.
func (f *flow) count(a answer, t time.Duration) {
	n := uint64(f.due)
	f.due -= float64(n)
	f.counters.Attempts += n
	switch a.kind {
	case scenario.Answers:
		f.counters.Answered += n
	case scenario.Refuses:
		f.counters.Refused += n
	case scenario.Slow:
		if n > 0 {
			f.late = append(f.late, lateAnswers{t + a.delay, n})
		}
	}
	for len(f.late) > 0 && f.late[0].at <= t {
		f.counters.Answered += f.late[0].count
		f.late = f.late[1:]
	}
}

// ConnectionsAge implements policy.Signals. Connections are counted as of now.
func (s *signals) ConnectionsAge(time.Time) (time.Duration, bool) { return 0, true }

// Connections implements policy.Signals.
func (s *signals) Connections(k model.EndpointKey) (n uint32, ok bool) {
	f := s.flows[k]
	if f == nil {
		return 0, true
	}
	return uint32(min(math.Round(f.open), math.MaxUint32)), true
}
