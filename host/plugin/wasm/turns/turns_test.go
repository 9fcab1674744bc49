package turns

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// use takes turns until all of them together have been as long as a task, and returns when that was. The last one is not lost.
func use(t *testing.T, turns *Turns, task time.Duration) (took time.Duration) {
	begin := time.Now()
	for lost := 0; ; lost++ {
		x, err := turns.Take(t.Context(), lost)
		if err != nil {
			t.Error(err)
		}
		for time.Since(x.begun) < task && !turns.isLost(x) {
			time.Sleep(time.Second) // time passes
		}
		done := time.Since(x.begun) >= task
		turns.Give(x)
		if done {
			return time.Since(begin)
		}
	}
}

// TestTurnsAreLostToOthersThatWait: tasks of every length end, short ones soon.
func TestTurnsAreLostToOthersThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		lengths := []time.Duration{time.Hour, time.Minute, time.Second, 3 * time.Second, 40 * time.Second}
		ends := make([]time.Duration, len(lengths))
		done := make(chan bool)
		for i, length := range lengths {
			go func() {
				ends[i] = use(t, turns, length)
				done <- true
			}()
			synctest.Wait()
		}
		for range lengths {
			<-done
		}
		if ends[2] > 15*time.Second || ends[3] > 15*time.Second || ends[4] > 5*time.Minute || ends[1] > 10*time.Minute || ends[0] > 2*time.Hour {
			t.Errorf("tasks of %v end after %v", lengths, ends)
		}
	})
}

// TestTurnIsKeptWhileNobodyWaits, and lost when plugins lack memory.
func TestTurnIsKeptWhileNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		turns.Lacking() // nobody has it
		x, err := turns.Take(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // time passes
		if turns.isLost(x) {
			t.Error("lost to nobody")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Take(ctx, 0); err == nil || turns.isLost(x) {
			t.Errorf("%v; lost to somebody who has given up: %t", err, turns.isLost(x))
		}
		if turns.Lacking(); !turns.isLost(x) {
			t.Error("plugins that lack memory wait")
		}
		turns.Give(x)
		if turns.Give(x); turns.held != nil || len(turns.queue) > 0 {
			t.Errorf("%+v", turns)
		}
	})
}

// TestTurnsGoToThoseThatHaveLostLeast, in the order of their calls.
func TestTurnsGoToThoseThatHaveLostLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &Turns{}
		first, err := turns.Take(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i, lost := range []int{2, 0, 1, 0, 2} {
			go func() {
				x, err := turns.Take(t.Context(), lost)
				if err == nil {
					got = append(got, i)
					turns.Give(x)
				}
			}()
			synctest.Wait()
		}
		turns.Give(first)
		synctest.Wait()
		if want := []int{1, 3, 2, 0, 4}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}
