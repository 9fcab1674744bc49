package watchdog

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const limit = 20 * time.Millisecond

// spin uses CPU time until *number changes, like native code: without a point where the scheduler could preempt it. It
// returns the CPU time that it used. Every loop is short enough that the test ends even if the number never changes.
//
//go:nosplit
func spin(number *uint64) time.Duration {
	begin := threadTime(syscall.Gettid())
	for n := 0; atomic.LoadUint64(number) == 0; n++ {
		if n%100_000 == 0 && threadTime(syscall.Gettid())-begin > int64(5*time.Second) {
			break
		}
	}
	return time.Duration(threadTime(syscall.Gettid()) - begin)
}

func newTimer(t testing.TB, w *Watchdog) (*Timer, *uint64) {
	t.Helper()
	number := new(uint64)
	timer, err := w.Add(number, 7)
	if err != nil {
		t.Fatal(err)
	}
	return timer, number
}

// checkLate makes a call that only the watchdog ends, up to three times: a virtual machine may be stalled meanwhile.
func checkLate(t *testing.T, timer *Timer, number *uint64) {
	t.Helper()
	var used time.Duration
	for range 3 {
		atomic.StoreUint64(number, 0)
		timer.Start(limit)
		used = spin(number)
		isLate := timer.Late()
		if !timer.Stop() || !isLate || *number != 7 {
			t.Errorf("a call that used %s is not late; the number is %d", used, *number)
		}
		if used < limit {
			t.Errorf("ended after %s of CPU time, want 20 ms at least", used)
		}
		if used <= 50*time.Millisecond {
			return
		}
	}
	t.Errorf("ended after %s of CPU time, want 50 ms at most", used)
}

func TestLateCallsEnd(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	for range 5 {
		checkLate(t, timer, number)
	}
}

// Each collection stops the world twice, which waits for the call; the watchdog does not wait for the world.
func TestLateCallsEndDuringGarbageCollection(t *testing.T) {
	if !Independent {
		t.Skip("with the race detector the watchdog is an ordinary goroutine")
	}
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	for range 10 {
		checkLate(t, timer, number)
	}
	stop.Store(true)
	wg.Wait()
}

func TestLateCallsEndOnAllProcessorsAtOnce(t *testing.T) {
	if !Independent {
		t.Skip("with the race detector the watchdog is an ordinary goroutine")
	}
	for _, procs := range []int{1, 2} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			w := &Watchdog{}
			defer w.Close()
			var wg sync.WaitGroup
			for range 4 {
				timer, number := newTimer(t, w)
				wg.Go(func() { checkLate(t, timer, number) })
			}
			wg.Wait()
		}()
	}
}

// Calls without CPU time are never late, however long they take, and the number is not touched.
func TestWaitingIsNotLate(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	other, busy := newTimer(t, w)
	timer.Start(limit)
	wait := make(chan struct{})
	go func() {
		defer close(wait)
		for range 3 {
			checkLate(t, other, busy)
		}
	}()
	<-wait
	if timer.Stop() || *number != 0 {
		t.Errorf("late, the number is %d", *number)
	}
}

// A call that ends in time is not affected by one before it: each of these is short, together they take longer than the limit.
func TestShortCallsAreNotLate(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	begin := threadTime(syscall.Gettid())
	for n := 0; n < 1000 || threadTime(syscall.Gettid())-begin < int64(3*limit); n++ {
		timer.Start(limit)
		if timer.Stop() || *number != 0 {
			t.Fatalf("call %d: late, the number is %d", n, *number)
		}
	}
}

// The store of a late call never reaches the next call, even if the call ends at the same moment.
func TestNothingIsStoredAfterStop(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	lates := 0
	const calls = 80
	for n := range calls {
		atomic.StoreUint64(number, 0)
		timer.Start(time.Millisecond)
		begin := threadTime(syscall.Gettid())
		for threadTime(syscall.Gettid())-begin < int64(time.Millisecond)+int64(n)*100_000 && atomic.LoadUint64(number) == 0 {
		}
		if timer.Stop() {
			lates++
		} else if *number != 0 {
			t.Fatal("stored for a call that is not late")
		}
		*number = 0
		runtime.Gosched()
		if *number != 0 {
			t.Fatal("stored after Stop")
		}
	}
	if lates == 0 || lates == calls {
		t.Logf("%d of %d late: the test proves little here", lates, calls)
	}
}

func TestThreadSleepsAndWakes(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, number := newTimer(t, w)
	checkLate(t, timer, number)
	for deadline := time.Now().Add(time.Minute); w.asleep.Load() == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it does not sleep")
		}
	}
	checkLate(t, timer, number)
}

func TestTimersAreReused(t *testing.T) {
	w := &Watchdog{}
	var all []*Timer
	for range capacity {
		timer, _ := newTimer(t, w)
		all = append(all, timer)
	}
	if _, err := w.Add(new(uint64), 1); err == nil {
		t.Error("more timers than there is room for")
	}
	for _, timer := range all {
		w.Remove(timer)
	}
	timer, number := newTimer(t, w)
	checkLate(t, timer, number)
	w.Remove(timer)
	w.Close()
	if _, err := w.Add(new(uint64), 1); err == nil {
		t.Error("a closed watchdog has a timer")
	}
}

func TestCallDoesNotAllocate(t *testing.T) {
	w := &Watchdog{}
	defer w.Close()
	timer, _ := newTimer(t, w)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	if n := testing.AllocsPerRun(1000, func() { timer.Start(limit); timer.Stop() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCall(b *testing.B) {
	w := &Watchdog{}
	defer w.Close()
	timer, _ := newTimer(b, w)
	for b.Loop() {
		timer.Start(limit)
		timer.Stop()
	}
}
