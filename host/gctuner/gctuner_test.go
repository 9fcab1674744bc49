package gctuner

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestPercentAllowsHeadroomAboveLiveHeap(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 1 << 20: 100, 24 << 20: 100, 48 << 20: 50, 96 << 20: 25, 120 << 20: 20, 1 << 30: 20, 1 << 62: 20,
	} {
		if got := percent(live); got != want {
			t.Errorf("%d MiB live: GOGC %d, want %d", live>>20, got, want)
		}
	}
}

func TestGOGCFollowsLiveHeapUnlessSetByOperator(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	current := func() int { p := debug.SetGCPercent(100); debug.SetGCPercent(p); return p }

	t.Setenv("GOGC", "80")
	debug.SetGCPercent(80)
	SetStartup()
	ReleaseStartup()
	if got := current(); got != 80 {
		t.Fatalf("GOGC=80 changed to %d", got)
	}

	t.Setenv("GOGC", "")
	SetStartup()
	if got := current(); got != startupPercent {
		t.Fatalf("GOGC %d at startup", got)
	}
	live := make([]byte, 96<<20)
	ReleaseStartup()
	if got := current(); got < minPercent || got > 25 {
		t.Fatalf("GOGC %d with 96 MiB live", got)
	}
	runtime.KeepAlive(live)
	ReleaseStartup()
	if got := current(); got != startupPercent {
		t.Fatalf("GOGC %d after startup", got)
	}
	Retune()
	if got := current(); got != maxPercent {
		t.Fatalf("GOGC %d with almost nothing live", got)
	}
}
