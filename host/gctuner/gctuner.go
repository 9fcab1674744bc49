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
	startupPercent = 50
	minPercent     = 20
	maxPercent     = 100
	// headroom is how much garbage there may be, in bytes, within those bounds.
	headroom = 24 << 20
)

// SetStartup is to be called before much is allocated.
func SetStartup() {
	if !gogcIsSet() {
		debug.SetGCPercent(startupPercent)
	}
}

// ReleaseStartup gives back what the start took and does not need any more. It takes some 100 ms of a processor for 100 MiB,
// beside the others.
func ReleaseStartup() {
	debug.FreeOSMemory()
	Retune()
}

// Retune follows what is in use as the cluster grows and shrinks. It is cheap, and to be called from time to time.
func Retune() {
	if gogcIsSet() {
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
		return maxPercent
	}
	return int(min(max(headroom*100/live, minPercent), maxPercent))
}

// gogcIsSet tells whether whoever started the process has chosen: that holds.
func gogcIsSet() bool { return os.Getenv("GOGC") != "" }
