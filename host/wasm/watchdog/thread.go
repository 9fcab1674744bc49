package watchdog

import (
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A call of a plugin takes 0.2 µs, gettid(2) up to as much. The runtime knows the id of each thread, in its field m.procid.
// Where that field is, is found by comparison with gettid in several threads. If it is not found, gettid is called.

// getm returns the address of the runtime's record of this thread. The runtime exports it for such users.
//
//go:linkname getm runtime.getm
func getm() uintptr

const (
	recordSize = 256 // of the part of m that is searched
	threads    = 3   // that agree on the place
)

// threadIDOffset returns the place of procid in m, 0 if it is unknown.
var threadIDOffset = sync.OnceValue(func() uintptr {
	var matches [recordSize / 8]int
	var here, all sync.WaitGroup
	here.Add(threads)
	var mu sync.Mutex
	for range threads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here.Done()
			here.Wait() // for the others to have threads of their own
			tid := uint64(syscall.Gettid())
			mu.Lock()
			defer mu.Unlock()
			for i := range matches {
				if word(getm(), uintptr(8*i)) == tid {
					matches[i]++
				}
			}
		})
	}
	all.Wait()
	for i, n := range matches {
		if n == threads {
			return uintptr(8 * i)
		}
	}
	return 0
})

// threadID returns the id of this thread, on which the caller stays.
func threadID(offset uintptr) int {
	if offset == 0 {
		return syscall.Gettid()
	}
	return int(word(getm(), offset))
}

// word reads the record of this thread, which exists as long as the thread.
func word(record, offset uintptr) uint64 {
	return *(*uint64)(unsafe.Add(*(*unsafe.Pointer)(unsafe.Pointer(&record)), offset))
}

// raisePriority has the kernel run this thread as soon as it wakes, which it does for a few microseconds at a time. On a busy
// machine it could otherwise wait longer than the calls may take. Without CAP_SYS_NICE it only asks for short time slices,
// which Linux 6.12 and later prefer.
func raisePriority() {
	fifo := &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	if unix.SchedSetAttr(0, fifo, 0) == nil {
		return
	}
	if attr, err := unix.SchedGetAttr(0, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
		attr.Runtime = uint64(100 * time.Microsecond)
		_ = unix.SchedSetAttr(0, attr, 0) // older kernels ignore it
	}
}
