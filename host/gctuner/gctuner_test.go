package gctuner

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestGarbageIsBoundedByWhatIsInUse(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 100, 1 << 20: 100, 24 << 20: 100, 48 << 20: 50, 96 << 20: 25, 120 << 20: 20, 1 << 30: 20, 1 << 62: 20,
	} {
		if got := percent(live); got != want {
			t.Errorf("%d MiB in use: %d %%, want %d", live>>20, got, want)
		}
	}
}

func TestTheHeapInUseDecidesUnlessTheOperatorDoes(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	current := func() int { p := debug.SetGCPercent(100); debug.SetGCPercent(p); return p }

	t.Setenv("GOGC", "80")
	debug.SetGCPercent(80)
	SetStartup()
	ReleaseStartup()
	if got := current(); got != 80 {
		t.Fatalf("GOGC=80 has become %d", got)
	}

	t.Setenv("GOGC", "")
	SetStartup()
	if got := current(); got != startupPercent {
		t.Fatalf("%d %% at the start", got)
	}
	kept := make([]byte, 96<<20)
	ReleaseStartup()
	if got := current(); got < minPercent || got > 25 {
		t.Fatalf("%d %% with 96 MiB in use", got)
	}
	runtime.KeepAlive(kept)
	kept = nil
	ReleaseStartup()
	if got := current(); got != maxPercent {
		t.Fatalf("%d %% with next to nothing in use", got)
	}
}
