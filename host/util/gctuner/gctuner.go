// Package gctuner limits the memory that the process uses for garbage. With Go's default, the heap grows to twice the
// live heap before it is collected; on every node of a large cluster that is too much.
package gctuner

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Values of GOGC, in percent of the live heap. startupPercent applies during startup, when most allocations stay live.
const (
	startupPercent = 50
	minPercent     = 20
	maxPercent     = 100
	backlogPercent = 200
	// headroom is the garbage to allow, in bytes, within minPercent and maxPercent, and backlogHeadroom that during a backlog,
	// see Backlog, within minPercent and backlogPercent.
	headroom        = 24 << 20
	backlogHeadroom = 72 << 20
)

// state is what GOGC depends on beyond the live heap.
var state struct {
	sync.Mutex
	maximum int // zero: during startup
	backlog bool
}

// SetStartup sets GOGC for startup. It must be called before the process allocates much.
func SetStartup() {
	if !gogcIsSet() {
		debug.SetGCPercent(startupPercent)
	}
}

// ReleaseStartup returns the memory that only startup needed to the operating system, and that of the program's pages. Until
// Retune, the heap grows by startupPercent at most. It uses about 100 ms of one CPU for 100 MiB, concurrently with other
// goroutines.
func ReleaseStartup() {
	debug.FreeOSMemory()
	ReleaseProgram()
	retune(startupPercent)
}

// Retune adapts GOGC to the size of the live heap. It is cheap and meant to be called periodically.
func Retune() { retune(maxPercent) }

// retune sets GOGC, to maximum at most without a backlog.
func retune(maximum int) {
	state.Lock()
	defer state.Unlock()
	state.maximum = maximum
	set()
}

// setBacklog sets GOGC as it is with or without a backlog.
func setBacklog(backlog bool) {
	state.Lock()
	defer state.Unlock()
	if state.backlog = backlog; state.maximum > 0 {
		set()
	}
}

// set sets GOGC from the state, which is locked. It waits for a collection that is running.
func set() {
	if gogcIsSet() {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	n := live[0].Value.Uint64()
	gogc := min(percent(n, headroom), state.maximum)
	if state.backlog {
		gogc = percent(n, backlogHeadroom)
	}
	debug.SetGCPercent(gogc)
}

// percent returns the GOGC that allows so much garbage above the live heap.
func percent(live, garbage uint64) int {
	if live == 0 {
		return backlogPercent
	}
	return int(min(max(garbage*100/live, minPercent), backlogPercent))
}

// gogcIsSet reports whether the operator has set GOGC, which takes precedence.
func gogcIsSet() bool { return os.Getenv("GOGC") != "" }
