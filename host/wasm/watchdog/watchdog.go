package watchdog

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	capacity  = 1024                         // timers
	tick      = 4 * time.Millisecond         // between two looks at the running calls
	idleTicks = 64                           // ticks without calls after which the watchdog sleeps until the next call
	maxTime   = limitMask * time.Millisecond // of a call
)

// Watchdog ends the calls of its timers. From its first timer until Close it has a thread of its own, which sleeps while there
// are no calls. The zero value is ready to use.
type Watchdog struct {
	timers [capacity]Timer
	used   atomic.Int32  // the timers from here on were never used
	asleep atomic.Uint32 // a futex: 1 while the thread waits for a call
	begun  atomic.Bool   // the thread watches
	closed atomic.Bool

	mu   sync.Mutex
	done chan struct{} // closed when the thread has ended; nil: there is none
}

// Timer limits the calls of one owner, one at a time.
type Timer struct {
	state  atomic.Uint64
	number *uint64 // where to store
	value  uint64  // what to store
	calls  uint64  // of Start
	w      *Watchdog
	offset uintptr // for threadID
	owned  bool

	seen uint64 // by the watchdog: state at its last look, and CPU time of the thread when it first saw that state
	base int64
}

// The state of a timer is one word: the number of the call, the thread that makes it, its limit in milliseconds, and a phase.
// Idle is followed by running. A running call becomes idle when it returns, or ending and ended when it is late.
const (
	phaseMask  = 3
	idle       = 0
	running    = 1
	ending     = 2
	ended      = 3
	limitShift = 2
	limitMask  = 1<<10 - 1
	tidShift   = limitShift + 10
	tidMask    = 1<<22 - 1 // Linux has at most 2^22 threads
	callShift  = tidShift + 22
)

// Add returns a timer that stores value in *number when a call is late. The caller keeps number valid until Remove.
func (w *Watchdog) Add(number *uint64, value uint64) (*Timer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return nil, errors.New("watchdog: closed")
	}
	if w.done == nil {
		if threadTime(syscall.Gettid()) < 0 {
			return nil, errors.New("watchdog: the kernel does not report the CPU time of threads")
		}
		w.done = make(chan struct{})
		go func() {
			defer close(w.done)
			runtime.LockOSThread() // and never unlock: the thread and its priority end with the goroutine
			raisePriority()
			w.watch()
		}()
		for !w.begun.Load() { // later it may not get a P
			runtime.Gosched()
		}
	}
	for i := range w.timers {
		if t := &w.timers[i]; !t.owned {
			t.owned, t.w, t.offset, t.number, t.value = true, w, threadIDOffset(), number, value
			w.used.Store(max(w.used.Load(), int32(i+1)))
			return t, nil
		}
	}
	return nil, fmt.Errorf("watchdog: more than %d timers", capacity)
}

// Remove returns a timer that has no running call.
func (w *Watchdog) Remove(t *Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.owned, t.number = false, nil
}

// Close ends the thread. There are no running calls, and no more timers afterwards.
func (w *Watchdog) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed.Store(true)
	w.wake()
	if w.done != nil {
		<-w.done
	}
}

// Start begins a call on this thread, which the caller keeps until Stop, with a limit of its CPU time in whole milliseconds, at
// most 1023. The call ends between limit and two ticks later.
func (t *Timer) Start(limit time.Duration) {
	runtime.LockOSThread()
	t.calls++
	t.state.Store(t.calls<<callShift | uint64(threadID(t.offset))<<tidShift | uint64(min(limit, maxTime)/time.Millisecond)<<limitShift | running)
	if t.w.asleep.Load() != 0 {
		t.w.wake()
	}
}

// Stop ends the call and reports whether it was late. Afterwards nothing is stored until the next Start.
func (t *Timer) Stop() (late bool) {
	defer runtime.UnlockOSThread()
	for {
		s := t.state.Load()
		switch s & phaseMask {
		case running:
			if t.state.CompareAndSwap(s, s&^phaseMask|idle) {
				return false
			}
		case ending: // for some instructions
			runtime.Gosched()
		default:
			t.state.Store(s&^phaseMask | idle)
			return true
		}
	}
}

// Late reports whether the running call has used its time.
func (t *Timer) Late() bool { return t.state.Load()&phaseMask >= ending }

func (w *Watchdog) wake() {
	if w.asleep.Swap(0) != 0 {
		futex(&w.asleep, futexWake, 1)
	}
}

// watch looks at all timers until it is stopped.
//
//go:nosplit
//go:noinline
func (w *Watchdog) watch() {
	enter()
	w.begun.Store(true)
	idleFor := 0
	for !w.closed.Load() {
		if w.look() {
			idleFor = 0
		} else {
			idleFor++
		}
		if idleFor < idleTicks {
			sleep()
			continue
		}
		w.asleep.Store(1)
		if !w.look() && !w.closed.Load() { // a call that started before would not wake it
			futex(&w.asleep, futexWait, 1)
		}
		w.asleep.Store(0)
		idleFor = 0
	}
	exit()
}

// look ends the calls that are late and reports whether there was any call since it looked last.
//
//go:nosplit
func (w *Watchdog) look() (active bool) {
	used := int(w.used.Load())
	for i := range w.timers { // of constant length: without a check of the index, which could panic
		if i == used {
			break
		}
		if w.timers[i].look() {
			active = true
		}
	}
	return active
}

//go:nosplit
func (t *Timer) look() (active bool) {
	s := t.state.Load()
	isNew := s != t.seen
	t.seen = s
	if s&phaseMask != running {
		return isNew
	}
	now := threadTime(int(s >> tidShift & tidMask))
	if isNew {
		t.base = now
		return true
	}
	if now-t.base >= int64(s>>limitShift&limitMask)*int64(time.Millisecond) && t.state.CompareAndSwap(s, s&^phaseMask|ending) {
		// The call cannot return from Stop now, so its owner keeps the number, and nobody else writes it.
		atomic.StoreUint64(t.number, t.value)
		t.state.Store(s&^phaseMask | ended)
	}
	return true
}

// threadTime returns the CPU time of a thread in nanoseconds, -1 if there is no such thread.
//
//go:nosplit
func threadTime(tid int) int64 {
	const perThread, scheduler = 4, 2 // see clock_getcpuclockid(3)
	var ts syscall.Timespec
	clock := int32(^tid<<3 | perThread | scheduler)
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		return -1
	}
	return ts.Sec*1e9 + ts.Nsec
}

//go:nosplit
func sleep() {
	ts := syscall.Timespec{Nsec: int64(tick)}
	block(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

const (
	futexWait = 128 // FUTEX_WAIT_PRIVATE
	futexWake = 129 // FUTEX_WAKE_PRIVATE
)

//go:nosplit
func futex(word *atomic.Uint32, op, value uintptr) {
	block(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, value)
}
