// Package lane is the memory that sluice shares with the process of a plugin, and how one wakes the other: a sealed memfd with
// lanes, each for one message at a time and its answer. Neither side trusts what the other has written there.
package lane

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/mapping"
)

// Sizes in bytes. The memory is sparse: pages exist from when they are used.
const (
	header  = 4096
	Request = 16 << 20 // of all calls of a message
	Answer  = 8 << 20
	size    = header + Request + Answer
)

// Count is the number of lanes of a process.
const Count = 2

// Size is that of the memory.
const Size = Count * size

// Lane is one of the lanes.
type Lane struct {
	memory []byte
	seen   uint32        // answers, or messages in the process
	mapped time.Time     // sent and busy are monotonic: nobody sets that clock
	sent   atomic.Int64  // ns since mapped, of the message that is not answered yet, 0: there is none
	busy   atomic.Int64  // ns, of all messages that are answered
	left   unix.Timespec // of the time that Await waits
}

// In the header, in cache lines of their own: a word that counts messages or answers, and whether the other side sleeps until the
// next one. What the words do not say: see message.go of package wasm.
const (
	requestWord  = 0
	requestSleep = 64
	answerWord   = 128
	answerSleep  = 192
	numbers      = 256 // of 8 bytes
)

func (l *Lane) word(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&l.memory[at])) }

// Number returns a number that both sides can read and write.
func (l *Lane) Number(i int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&l.memory[numbers+8*i]))
}

// Request returns the area of messages.
func (l *Lane) Request() []byte { return l.memory[header:][:Request:Request] }

// Answer returns the area of answers.
func (l *Lane) Answer() []byte { return l.memory[header+Request:][:Answer:Answer] }

// Create returns a new memory as a file, which cannot change its size: reading beyond the end of a mapping would end the reader.
func Create() (*os.File, error) {
	f, err := mapping.NewFile("sluice-plugin")
	if err != nil {
		return nil, fmt.Errorf("memory of a plugin's process: %w", err)
	}
	fd := f.Fd()
	err = unix.Ftruncate(int(fd), Size)
	if err == nil {
		_, err = unix.FcntlInt(fd, unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory of a plugin's process: %w", err), f.Close())
	}
	return f, nil
}

// Map maps the lanes of a memory.
func Map(f *os.File) ([]*Lane, error) {
	memory, err := unix.Mmap(int(f.Fd()), 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory of a plugin's process: %w", err)
	}
	lanes := make([]*Lane, Count)
	for i := range lanes {
		lanes[i] = &Lane{memory: memory[i*size:][:size:size], mapped: time.Now()}
	}
	return lanes, nil
}

// Unmap releases what Map has returned. Nobody may use the lanes any more.
func Unmap(lanes []*Lane) { _ = unix.Munmap(unsafe.Slice(&lanes[0].memory[0], Size)) }

// Resident returns how much of a memory exists, in bytes.
func Resident(f *os.File) int64 {
	var st unix.Stat_t
	_ = unix.Fstat(int(f.Fd()), &st) // cannot fail
	return 512 * st.Blocks
}

// Send tells the process that there is a message.
func (l *Lane) Send() {
	l.sent.Store(l.now())
	ring(l.word(requestWord), l.word(requestSleep))
}

func (l *Lane) now() int64 { return time.Since(l.mapped).Nanoseconds() }

// Await waits for the answer for as long as a patience, and reports whether there is one. Otherwise it returns how long it has
// waited: on a busy machine that is more, but a time for which sluice itself has not run does not count.
func (l *Lane) Await(patience time.Duration) (answered bool, waited time.Duration) {
	begin := l.now()
	l.left = unix.NsecToTimespec(int64(patience))
	if !wait(l.word(answerWord), l.word(answerSleep), l.seen, &l.left) {
		return false, min(time.Duration(l.now()-begin), 4*patience)
	}
	l.seen++
	l.busy.Add(l.now() - l.sent.Swap(0))
	return true, 0
}

// Receive waits for the next message, in the process.
func (l *Lane) Receive() {
	wait(l.word(requestWord), l.word(requestSleep), l.seen, nil)
	l.seen++
}

// Reply tells sluice that there is an answer.
func (l *Lane) Reply() { ring(l.word(answerWord), l.word(answerSleep)) }

// Trim returns the pages of a large message and its answer.
func (l *Lane) Trim() { _ = unix.Madvise(l.memory[header:], unix.MADV_REMOVE) }

// Linux's FUTEX_WAIT and FUTEX_WAKE, between processes.
const (
	futexWait = 0
	futexWake = 1
)

func ring(word, sleeps *atomic.Uint32) {
	word.Add(1)
	if sleeps.Load() != 0 {
		_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0)
	}
}

// wait waits until word is not old; without a timeout for ever. It blocks the thread: Go's poller would take milliseconds on a
// busy machine. The other side may wake it as often as it likes.
func wait(word, sleeps *atomic.Uint32, old uint32, timeout *unix.Timespec) bool {
	if word.Load() != old {
		return true
	}
	sleeps.Store(1)
	defer sleeps.Store(0)
	for begin := time.Now(); word.Load() == old; {
		_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(old), uintptr(unsafe.Pointer(timeout)), 0, 0)
		if timeout == nil || word.Load() != old {
			continue
		}
		now := time.Now()
		left := timeout.Nano() - now.Sub(begin).Nanoseconds()
		if errno == unix.ETIMEDOUT || left <= 0 {
			return false
		}
		*timeout, begin = unix.NsecToTimespec(left), now
	}
	return true
}

// CPU returns the CPU time of a process, 0 if there is none.
func CPU(pid int) time.Duration {
	const processClock = 2
	var t unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|processClock), &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// Memory returns how many bytes of addresses a process has mapped, and how many bytes of memory are its own: no pages of files,
// and none that it shares. A process that has ended has none.
func Memory(pid int) (mapped, own int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, 0
	}
	var pages, resident, shared int64
	_, _ = fmt.Sscan(string(text), &pages, &resident, &shared) // the kernel's format
	page := int64(os.Getpagesize())
	return pages * page, (resident - shared) * page
}

// Watch calls idle when a process has used CPU time that its messages do not account for, until it has ended: what computes
// without being asked is no plugin. It calls look when the process has run since look was last true.
func Watch(pid int, lanes []*Lane, ended <-chan struct{}, look func() bool, idle func(used time.Duration)) {
	ticker := time.NewTicker(WatchEvery)
	defer ticker.Stop()
	busy := func() (sum time.Duration) {
		for _, l := range lanes {
			sum += time.Duration(l.busy.Load())
			if sent := l.sent.Load(); sent != 0 {
				sum += time.Duration(l.now() - sent)
			}
		}
		return sum
	}
	lastBusy, lastCPU := busy(), CPU(pid)
	looked := time.Duration(0)
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		cpu, is := CPU(pid), busy()
		if cpu != looked && look() {
			looked = cpu
		}
		if used := cpu - lastCPU - 2*(is-lastBusy); used > IdleCPU { // twice: collections of garbage
			idle(used)
		}
		lastBusy, lastCPU = is, cpu
	}
}

// Bounds of Watch: IdleCPU is for the work of Go's runtime.
const (
	WatchEvery = 250 * time.Millisecond
	IdleCPU    = 50 * time.Millisecond
)

// Stopwatch measures calls by the CPU time of the thread that makes them. Reading the time of a thread takes a system call, so it
// is read once a millisecond, and calls that take less than their limit by the clock are not late. A call begins where the one
// before it has ended.
type Stopwatch struct {
	limit   time.Duration
	message time.Time
	begun   time.Duration // of the call, since the message
	ended   time.Duration // of the last call, or now
	cpu     time.Duration // of the thread …
	sampled time.Time     // … at this time
}

// MessageTime is after how long a process makes no more calls of a message: others may be waiting for those that are left.
const MessageTime = 2 * time.Millisecond

// Begin begins a message.
func (s *Stopwatch) Begin() { s.message, s.ended = time.Now(), 0 }

// Long reports whether the calls of the message have taken longer than MessageTime.
func (s *Stopwatch) Long() bool { return s.ended > MessageTime }

const sampleEvery = time.Millisecond

// Start begins a call.
func (s *Stopwatch) Start(limit time.Duration) {
	s.begun, s.limit = s.ended, limit
	if at := s.message.Add(s.begun); at.Sub(s.sampled) >= sampleEvery {
		s.cpu, s.sampled = threadCPU(), at
	}
}

// Late reports whether the call takes more than its limit.
func (s *Stopwatch) Late() bool {
	s.ended = time.Since(s.message)
	return s.ended-s.begun > s.limit && threadCPU()-s.cpu > s.limit+sampleEvery
}

func threadCPU() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail
	return time.Duration(t.Nano())
}
