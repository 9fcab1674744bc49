package outcomes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

var start = time.UnixMilli(1_700_000_000_000)

func key(n int) model.EndpointKey {
	return model.EndpointKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80), Protocol: model.TCP}
}

// one is a reading of one endpoint.
func one(attempts, answered, refused uint64) map[model.EndpointKey]Counters {
	return map[model.EndpointKey]Counters{key(1): {attempts, answered, refused}}
}

// follow passes readings, a second apart, and returns the outcomes after the last one.
func follow(t *testing.T, readings ...map[model.EndpointKey]Counters) (*Tracker, abi.Outcomes) {
	t.Helper()
	tr := NewTracker()
	for i, r := range readings {
		tr.Update(start.Add(time.Duration(i)*time.Second), maps.All(r))
	}
	o, _, ok := tr.Get(key(1))
	if !ok {
		t.Fatal("the endpoint is not known")
	}
	return tr, o
}

func TestFirstReadingIsTheBase(t *testing.T) {
	tr, o := follow(t, one(1000, 900, 50))
	if o != (abi.Outcomes{Since: start.UnixMilli()}) {
		t.Errorf("%+v", o)
	}
	if _, _, window := tr.Last(); window != 0 {
		t.Errorf("window %s without a reading to compare with", window)
	}
}

func TestWindowAndTotals(t *testing.T) {
	tr, o := follow(t, one(5, 5, 0), one(15, 10, 2), one(25, 18, 3))
	want := abi.Outcomes{
		Attempts: 10, Answered: 8, Refused: 1, Unanswered: 0,
		TotalAttempts: 20, TotalAnswered: 13, TotalRefused: 3, Since: start.UnixMilli(),
	}
	if o != want {
		t.Errorf("got  %+v\nwant %+v", o, want)
	}
	if n, at, window := tr.Last(); n != 3 || !at.Equal(start.Add(2*time.Second)) || window != time.Second {
		t.Error(n, at, window)
	}
}

func TestAttemptIsUnansweredAfterGrace(t *testing.T) {
	tr, o := follow(t, one(0, 0, 0), one(3, 0, 0))
	if o.Unanswered != 0 || o.TotalUnanswered != 0 {
		t.Errorf("attempts of less than a second: %+v", o)
	}
	changes := tr.Update(start.Add(2*time.Second), maps.All(one(3, 1, 0)))
	if o, failedAt, _ := tr.Get(key(1)); o.Unanswered != 2 || o.TotalUnanswered != 2 || failedAt != 3 {
		t.Errorf("%+v, failed at %d", o, failedAt)
	}
	if want := []Change{{Key: key(1), Answered: 1, Unanswered: 2, Failed: true}}; !slices.Equal(changes, want) {
		t.Errorf("got %+v, want %+v", changes, want)
	}
	if changes := tr.Update(start.Add(3*time.Second), maps.All(one(3, 1, 0))); len(changes) != 0 {
		t.Errorf("nothing new: %+v", changes)
	}
	// One more answer, after 3 s.
	changes = tr.Update(start.Add(4*time.Second), maps.All(one(3, 2, 0)))
	if o, _, _ := tr.Get(key(1)); o.Unanswered != 0 || o.TotalUnanswered != 1 || o.TotalAnswered != 2 {
		t.Errorf("a late answer: %+v", o)
	}
	if want := []Change{{Key: key(1), Answered: 1}}; !slices.Equal(changes, want) {
		t.Errorf("got %+v, want %+v", changes, want)
	}
}

func TestReadingsInShortSuccessionDoNotMatureAttempts(t *testing.T) {
	tr := NewTracker()
	tr.Update(start, maps.All(one(0, 0, 0)))
	for ms := 100; ms < 1100; ms += 100 {
		tr.Update(start.Add(time.Duration(ms)*time.Millisecond), maps.All(one(1, 0, 0)))
		if o, _, _ := tr.Get(key(1)); o.TotalUnanswered != 0 {
			t.Fatalf("unanswered after %d ms", ms-100)
		}
	}
	tr.Update(start.Add(2100*time.Millisecond), maps.All(one(1, 0, 0)))
	if o, _, _ := tr.Get(key(1)); o.TotalUnanswered != 1 {
		t.Errorf("%+v", o)
	}
}

func TestRepeatedAnswersDoNotHideLaterFailures(t *testing.T) {
	_, o := follow(t, one(0, 0, 0), one(10, 40, 0), one(30, 40, 0), one(30, 40, 0))
	if o.TotalAnswered != 10 || o.TotalUnanswered != 20 {
		t.Errorf("%+v", o)
	}
	_, o = follow(t, one(0, 0, 0), one(10, 4, 40))
	if o.TotalAnswered != 4 || o.TotalRefused != 6 {
		t.Errorf("%+v", o)
	}
}

func TestCountersStartAgain(t *testing.T) {
	tr, o := follow(t, one(0, 0, 0), one(100, 90, 5), one(10, 8, 0), one(10, 8, 0))
	if o.TotalAttempts != 110 || o.TotalAnswered != 98 || o.TotalRefused != 5 {
		t.Errorf("%+v", o)
	}
	// The 5 in flight at the restart have an unknown fate; the 2 after it have no answer.
	if o.TotalUnanswered != 2 || o.Unanswered != 2 {
		t.Errorf("unanswered: %+v", o)
	}
	tr.Update(start.Add(4*time.Second), maps.All(one(0, 0, 0)))
	if o, _, _ := tr.Get(key(1)); o.TotalUnanswered != 2 || o.Unanswered != 0 {
		t.Errorf("a restart without connections: %+v", o)
	}
	tr.Update(start.Add(5*time.Second), maps.All(one(0, 0, 0)))
	if o, failedAt, _ := tr.Get(key(1)); o.TotalUnanswered != 2 || failedAt != 4 {
		t.Errorf("a restart repeats a failure: %+v, at %d", o, failedAt)
	}
}

func TestEndpointThatComesBackStartsAnew(t *testing.T) {
	tr, _ := follow(t, one(0, 0, 0), one(9, 3, 3))
	tr.Update(start.Add(2*time.Second), maps.All(map[model.EndpointKey]Counters{}))
	if _, _, ok := tr.Get(key(1)); ok || tr.Len() != 0 {
		t.Error("it is remembered")
	}
	tr.Update(start.Add(3*time.Second), maps.All(one(2, 2, 0)))
	want := abi.Outcomes{Attempts: 2, Answered: 2, TotalAttempts: 2, TotalAnswered: 2, Since: start.Add(2 * time.Second).UnixMilli()}
	if o, _, _ := tr.Get(key(1)); o != want {
		t.Errorf("got  %+v\nwant %+v", o, want)
	}
}

func TestWindowNumbersAreClamped(t *testing.T) {
	_, o := follow(t, one(0, 0, 0), one(1<<40, 1<<40, 0))
	if o.Attempts != 1<<32-1 || o.TotalAttempts != 1<<40 {
		t.Errorf("%+v", o)
	}
}

// connection is a connection of the dumb second implementation: a list of connections with times.
type connection struct {
	key     model.EndpointKey
	at      time.Time
	endedAt time.Time // zero: never
	refused bool
}

// TestTrackerEqualsAListOfConnections compares the tracker with a list of connections in random histories: endpoints that
// answer, refuse, are silent, come and go, with readings at irregular times.
func TestTrackerEqualsAListOfConnections(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { compare(t, rand.New(rand.NewPCG(uint64(seed), 12))) })
	}
}

func compare(t *testing.T, r *rand.Rand) {
	var (
		list    []connection
		since   = map[model.EndpointKey]time.Time{} // when the endpoint's counters started
		base    = map[model.EndpointKey]time.Time{} // when they were last read from 0
		tr      = NewTracker()
		now     = start
		reads   []time.Time
		totals  = map[model.EndpointKey]Change{}
		watched = map[model.EndpointKey]bool{}
	)
	for n := range 4 {
		watched[key(n)] = true
	}
	for step := range 40 {
		for n := range 6 { // endpoints come and go
			if k := key(n); r.IntN(12) == 0 {
				watched[k] = !watched[k]
			}
		}
		gap := markSpacing + time.Duration(r.IntN(1400))*time.Millisecond
		if step > 34 {
			clear(watched) // then all rest, so that every fate is known
			maps.Copy(watched, map[model.EndpointKey]bool{key(0): true, key(1): true})
		}
		quiet := step > 36
		for k, on := range watched {
			if !on {
				delete(since, k)
				continue
			}
			if _, ok := since[k]; !ok {
				since[k], base[k] = now, now
			}
			if quiet {
				continue
			}
			for range r.IntN(20) {
				c := connection{key: k, at: now.Add(time.Duration(r.Int64N(int64(gap))))}
				switch r.IntN(4) {
				case 0: // silent
				case 1:
					c.refused = true
					fallthrough
				default:
					c.endedAt = c.at.Add(time.Duration(r.IntN(1500)*r.IntN(2)) * time.Millisecond)
				}
				list = append(list, c)
			}
		}
		now = now.Add(gap)
		reads = append(reads, now)
		reading := map[model.EndpointKey]Counters{}
		for k := range since {
			reading[k] = count(list, k, since[k], now, now)
		}
		tr.Prepare(now.Add(time.Minute), maps.All(map[model.EndpointKey]Counters{})) // is dropped, and changes nothing
		for _, c := range tr.Update(now, maps.All(reading)) {
			sum := totals[c.Key]
			sum.Answered, sum.Refused, sum.Unanswered = sum.Answered+c.Answered, sum.Refused+c.Refused, sum.Unanswered+c.Unanswered
			totals[c.Key] = sum
		}
		if step == 0 { // the base
			for k := range since {
				base[k] = now
			}
		}
		if tr.Len() != len(reading) {
			t.Fatalf("step %d: %d endpoints are known, %d were read", step, tr.Len(), len(reading))
		}
		for k := range since {
			o, _, ok := tr.Get(k)
			if !ok {
				t.Fatalf("step %d: %s is unknown", step, k)
			}
			checkTotals(t, step, k, &o, list, base[k], reads)
			if step == 39 && !base[k].Equal(reads[0]) && o.TotalUnanswered != silent(list, k, base[k], now) {
				t.Fatalf("%s: %d unanswered at the end, want %d: %+v", k, o.TotalUnanswered, silent(list, k, base[k], now), o)
			}
		}
	}
}

// count returns what the data plane has counted since a time for attempts up to one time, and answers up to another.
func count(list []connection, k model.EndpointKey, since, attempts, answers time.Time) (c Counters) {
	for _, x := range list {
		if x.key != k || x.at.Before(since) {
			continue
		}
		if !x.at.After(attempts) {
			c.Attempts++
		}
		switch {
		case x.endedAt.IsZero() || x.endedAt.After(answers):
		case x.refused:
			c.Refused++
		default:
			c.Answered++
		}
	}
	return c
}

// silent returns how many attempts since a time have had no answer for longer than Grace.
func silent(list []connection, k model.EndpointKey, since, now time.Time) (n uint64) {
	for _, x := range list {
		if x.key == k && !x.at.Before(since) && now.Sub(x.at) > Grace && (x.endedAt.IsZero() || x.endedAt.After(now)) {
			n++
		}
	}
	return n
}

// checkTotals compares outcomes with the list.
func checkTotals(t *testing.T, step int, k model.EndpointKey, o *abi.Outcomes, list []connection, base time.Time, reads []time.Time) {
	t.Helper()
	now := reads[len(reads)-1]
	want := count(list, k, base, now, now)
	if o.TotalAttempts != want.Attempts {
		t.Fatalf("step %d: %s: %d attempts, want %d", step, k, o.TotalAttempts, want.Attempts)
	}
	if o.TotalAnswered+o.TotalRefused+o.TotalUnanswered > o.TotalAttempts {
		t.Fatalf("step %d: %s: more outcomes than attempts: %+v", step, k, o)
	}
	if base.Equal(reads[0]) {
		return // the first reading: answers to attempts before it count for later ones
	}
	if o.TotalAnswered != want.Answered || o.TotalRefused != want.Refused {
		t.Fatalf("step %d: %s: got %+v, want %+v", step, k, o, want)
	}
	if upper := silent(list, k, base, now); o.TotalUnanswered > upper {
		t.Fatalf("step %d: %s: %d unanswered, only %d are", step, k, o.TotalUnanswered, upper)
	}
	// The lower bound: as if all answers of the last window were to the newest attempts.
	before := time.Time{}
	for _, at := range reads {
		if now.Sub(at) >= Grace {
			before = at
		}
	}
	lower := uint64(0)
	if mature := count(list, k, base, before, now); mature.Attempts > want.Answered+want.Refused {
		lower = mature.Attempts - want.Answered - want.Refused
	}
	if o.TotalUnanswered != lower {
		t.Fatalf("step %d: %s: %d unanswered, want %d", step, k, o.TotalUnanswered, lower)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			reading := map[model.EndpointKey]Counters{}
			for i := range n {
				reading[key(i)] = Counters{}
			}
			tr, now := NewTracker(), start
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Second)
				tr.Update(now, maps.All(reading))
			}
		})
	}
}
