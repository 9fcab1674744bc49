package outcomes

import (
	"iter"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Grace is how long an attempt may remain without an answer before it counts as unanswered. TCP repeats a SYN after 1 s.
const Grace = time.Second

// Counters are a reading of what the data plane has counted for one endpoint. They must be read in such an order that no answer
// is counted whose attempt is not: attempts last.
type Counters struct {
	Attempts uint64 // connections sent to the endpoint
	// Answered counts answers. A repeated SYN-ACK counts again.
	Answered uint64
	Refused  uint64 // RST in answer to a SYN, SCTP ABORT, and ICMP unreachable; repeated ones count again
}

// Tracker turns readings into windows. It has an entry for each endpoint of the last reading: one that leaves is forgotten, and
// starts anew when it comes back. It is not safe for concurrent use.
type Tracker struct {
	endpoints map[model.EndpointKey]*endpoint
	reading   uint64    // number of the last reading, from 1
	at        time.Time // of the last reading
	window    time.Duration
	// marks are the times of endpoint.marks, the next one to replace first. They are at least markSpacing apart, so one of them
	// is always at least Grace ago.
	marks    [3]time.Time
	nextMark int
	rebase   bool   // the counters of the next reading may start anywhere
	counts   uint64 // of open connections, see NewOpen
}

// markSpacing is the minimum time between two marks.
const markSpacing = Grace / 2

// endpoint is the state of one endpoint. The totals are since it was first seen.
type endpoint struct {
	raw                         Counters  // last reading
	attempts, answered, refused uint64    // of each attempt at most one answer or refusal is counted
	unknown                     uint64    // attempts in flight when the counters started again
	marks                       [3]uint64 // attempts as of Tracker.marks
	mature                      uint64    // attempts at least Grace before the last reading
	unanswered, counted         uint64    // unanswered as of the last reading, and how many of them Changes have reported
	window                      window
	since                       int64  // Unix milliseconds
	failedAt                    uint64 // the last reading with a new failure
	// before are the attempts before the first one since the count with the number counts.
	before, counts uint64
}

// window contains the changes of the totals from one reading to the next.
type window struct{ attempts, answered, refused, unanswered uint64 }

// Change is what a reading adds for one endpoint. The sum of all changes never decreases: a connection that is answered after
// Grace counts as unanswered and as answered.
type Change struct {
	Key                           model.EndpointKey
	Answered, Refused, Unanswered uint64
	// Failed reports a new failure: a connection that was refused, or that has become unanswered.
	Failed bool
}

// NewTracker returns a tracker without endpoints. The counters of its first reading may start anywhere.
func NewTracker() *Tracker {
	return &Tracker{endpoints: map[model.EndpointKey]*endpoint{}, rebase: true}
}

// Update is Prepare and Commit. It returns the changes, sorted by key.
func (t *Tracker) Update(now time.Time, counters iter.Seq2[model.EndpointKey, Counters]) []Change {
	return t.Commit(t.Prepare(now, counters))
}

// Reading is what a reading of counters changes in a Tracker.
type Reading struct {
	number  uint64
	at      time.Time
	window  time.Duration
	mark    bool
	updates []update
	gone    []model.EndpointKey
	changes []Change
}

// update is the next state of an endpoint.
type update struct {
	key  model.EndpointKey
	of   *endpoint // nil: it is new
	next endpoint
}

// Prepare compares a reading, of each endpoint once, at a time that is not before that of the last one, with the state of the
// tracker. It changes nothing, so it may run while others call methods that do not, either. It may iterate over the counters
// twice.
func (t *Tracker) Prepare(now time.Time, counters iter.Seq2[model.EndpointKey, Counters]) *Reading {
	r := &Reading{number: t.reading + 1, at: now}
	if !t.rebase {
		r.window = now.Sub(t.at)
	}
	mature := t.newestMark(now)
	r.mark = r.number == 1 || now.Sub(t.marks[(t.nextMark+len(t.marks)-1)%len(t.marks)]) >= markSpacing
	known := 0
	for key, c := range counters {
		e := t.endpoints[key]
		u := update{key: key, of: e}
		switch {
		case e != nil:
			known++
			u.next = *e
		case t.rebase:
			u.next = endpoint{since: now.UnixMilli(), raw: c}
		default:
			u.next = endpoint{since: now.Add(-r.window).UnixMilli()}
		}
		if mature >= 0 {
			u.next.mature = max(u.next.mature, u.next.marks[mature])
		}
		u.next.update(c)
		if r.mark {
			u.next.marks[t.nextMark] = u.next.attempts
		}
		r.report(key, &u.next)
		if e == nil || u.next != *e {
			r.updates = append(r.updates, u)
		}
	}
	if known < len(t.endpoints) {
		there := make(map[model.EndpointKey]bool, known)
		for key := range counters {
			there[key] = true
		}
		for key := range t.endpoints {
			if !there[key] {
				r.gone = append(r.gone, key)
			}
		}
	}
	slices.SortFunc(r.changes, func(a, b Change) int { return a.Key.Compare(b.Key) })
	return r
}

// Commit takes the reading of the last Prepare, since which there was no other one, and returns its changes, sorted by key. Its
// cost follows the endpoints that have connections.
func (t *Tracker) Commit(r *Reading) []Change {
	for i := range r.updates {
		u, before := &r.updates[i], uint64(0)
		if u.of != nil {
			before = u.of.attempts
		}
		if u.next.attempts > before && u.next.counts != t.counts {
			u.next.before, u.next.counts = before, t.counts
		}
		if u.of != nil {
			*u.of = u.next
		} else {
			e := u.next // not a part of the list, all of which it would keep
			t.endpoints[u.key] = &e
		}
	}
	for _, key := range r.gone {
		delete(t.endpoints, key)
	}
	if r.mark {
		t.marks[t.nextMark], t.nextMark = r.at, (t.nextMark+1)%len(t.marks)
	}
	t.reading, t.at, t.window, t.rebase = r.number, r.at, r.window, false
	return r.changes
}

// newestMark returns the index of the newest mark that is at least Grace ago, -1 if there is none.
func (t *Tracker) newestMark(now time.Time) int {
	newest := -1
	for i, at := range t.marks {
		if !at.IsZero() && now.Sub(at) >= Grace && (newest < 0 || at.After(t.marks[newest])) {
			newest = i
		}
	}
	return newest
}

// update adds a reading to the totals. Answers that exceed the attempts are repetitions, and never make up for later attempts.
func (e *endpoint) update(c Counters) {
	if c.Attempts < e.raw.Attempts || c.Answered < e.raw.Answered || c.Refused < e.raw.Refused {
		e.unknown = e.attempts - e.answered - e.refused - e.unanswered
		e.mature = e.attempts
	}
	w := window{
		attempts: increase(e.raw.Attempts, c.Attempts), answered: increase(e.raw.Answered, c.Answered), refused: increase(e.raw.Refused, c.Refused),
	}
	e.raw = c
	e.attempts += w.attempts
	w.answered = min(w.answered, e.attempts-e.ended())
	e.answered += w.answered
	w.refused = min(w.refused, e.attempts-e.ended())
	e.refused += w.refused
	unanswered := uint64(0)
	if ended := e.ended(); e.mature > ended {
		unanswered = e.mature - ended
	}
	if unanswered > e.counted { // answers to younger attempts hide earlier failures for a time, which are no new ones
		w.unanswered = unanswered - e.counted
	}
	e.unanswered, e.window = unanswered, w
}

// ended returns the number of attempts that wait for no answer.
func (e *endpoint) ended() uint64 { return e.answered + e.refused + e.unknown }

// increase returns by how much a counter has increased. One that has decreased has started again at 0.
func increase(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

// report adds the change of an endpoint.
func (r *Reading) report(key model.EndpointKey, e *endpoint) {
	c := Change{Key: key, Answered: e.window.answered, Refused: e.window.refused}
	if e.unanswered > e.counted {
		c.Unanswered, e.counted = e.unanswered-e.counted, e.unanswered
	}
	if c.Failed = e.window.refused > 0 || e.window.unanswered > 0; c.Failed {
		e.failedAt = r.number
	}
	if c.Failed || c.Answered > 0 {
		r.changes = append(r.changes, c)
	}
}

// Last returns the number and time of the last reading, and the length of its window, 0 if there was no reading to compare with.
func (t *Tracker) Last() (reading uint64, at time.Time, window time.Duration) {
	return t.reading, t.at, t.window
}

// Len returns the number of endpoints.
func (t *Tracker) Len() int { return len(t.endpoints) }

// Get returns the outcomes of connections to an endpoint, and the number of the last reading with a new failure, 0 for none. ok
// is false if the last reading did not have it.
func (t *Tracker) Get(key model.EndpointKey) (o abi.Outcomes, failedAt uint64, ok bool) {
	e := t.endpoints[key]
	if e == nil {
		return abi.Outcomes{}, 0, false
	}
	w := &e.window
	return abi.Outcomes{
		Attempts: clamp(w.attempts), Answered: clamp(w.answered), Refused: clamp(w.refused), Unanswered: clamp(w.unanswered),
		TotalAttempts: e.attempts, TotalAnswered: e.answered, TotalRefused: e.refused, TotalUnanswered: e.unanswered,
		Since: e.since,
	}, e.failedAt, true
}

// OutcomesWindow returns the number of the last reading and its window. It and Outcomes are what policy.Signals asks for, as long
// as readings go on.
func (t *Tracker) OutcomesWindow(time.Time) (reading uint64, window time.Duration) {
	return t.reading, t.window
}

// Outcomes is Get; an endpoint that the last reading did not have has no outcomes.
func (t *Tracker) Outcomes(key model.EndpointKey) (o abi.Outcomes, failedAt uint64) {
	o, failedAt, _ = t.Get(key)
	return o, failedAt
}

func clamp(n uint64) uint32 { return uint32(min(n, 1<<32-1)) }
