// Package gctuner keeps the process's memory near what it needs. Go lets garbage grow to as much as what is in use
// before it collects; a proxy on every node of a large cluster is to take less.
package gctuner

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
)

// Bounds of how much garbage there may be before it is collected, in percent of what is in use. Start is while most
// of what is allocated stays.
const (
	startPercent = 50
	leastPercent = 20
	mostPercent  = 100
	// headroom is how much garbage there may be, in bytes, within those bounds.
	headroom = 24 << 20
)

// Start is to be called before much is allocated.
func Start() {
	if !chosen() {
		debug.SetGCPercent(startPercent)
	}
}

// Settle gives back what the start took and does not need any more. It takes some 100 ms of a processor for 100 MiB,
// beside the others.
func Settle() {
	debug.FreeOSMemory()
	Adjust()
}

// Adjust follows what is in use as the cluster grows and shrinks. It is cheap, and to be called from time to time.
func Adjust() {
	if chosen() {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() == metrics.KindUint64 {
		debug.SetGCPercent(percent(live[0].Value.Uint64()))
	}
}

// percent leaves headroom above what is in use.
func percent(live uint64) int {
	if live == 0 {
		return mostPercent
	}
	return int(min(max(headroom*100/live, leastPercent), mostPercent))
}

// chosen tells whether whoever started the process has chosen: that holds.
func chosen() bool { return os.Getenv("GOGC") != "" }
