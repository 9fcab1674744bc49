// Package gctuner limits the memory that the process uses for garbage. With Go's default, the heap grows to twice the
// live heap before it is collected; on every node of a large cluster that is too much.
package gctuner

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// Values of GOGC, in percent of the live heap. startupPercent applies during startup, when most allocations stay live.
const (
	startupPercent = 50
	minPercent     = 20
	maxPercent     = 100
	// headroom is the garbage to allow, in bytes, within minPercent and maxPercent.
	headroom = 24 << 20
)

// SetStartup sets GOGC for startup. It must be called before the process allocates much.
func SetStartup() {
	if !gogcIsSet() {
		debug.SetGCPercent(startupPercent)
	}
}

// ReleaseStartup returns the memory that only startup needed to the operating system, and that of the program's pages. Until Retune, the heap
// grows by startupPercent at most. It uses about 100 ms of one CPU for 100 MiB, concurrently with other goroutines.
func ReleaseStartup() {
	debug.FreeOSMemory()
	ReleaseProgram()
	retune(startupPercent)
}

// Retune adapts GOGC to the size of the live heap. It is cheap and meant to be called periodically.
func Retune() { retune(maxPercent) }

// retune sets GOGC, to maximum at most.
func retune(maximum int) {
	if gogcIsSet() {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() == metrics.KindUint64 {
		debug.SetGCPercent(min(percent(live[0].Value.Uint64()), maximum))
	}
}

// percent returns the GOGC that allows headroom above the live heap.
func percent(live uint64) int {
	if live == 0 {
		return maxPercent
	}
	return int(min(max(headroom*100/live, minPercent), maxPercent))
}

// gogcIsSet reports whether the operator has set GOGC, which takes precedence.
func gogcIsSet() bool { return os.Getenv("GOGC") != "" }
