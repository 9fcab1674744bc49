package gctuner

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestPercentAllowsHeadroomAboveLiveHeap(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 200, 1 << 20: 200, 12 << 20: 200, 24 << 20: 100, 48 << 20: 50, 96 << 20: 25, 120 << 20: 20, 1 << 30: 20, 1 << 62: 20,
	} {
		if got := percent(live, headroom); got != want {
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

func TestBacklogPostponesCollection(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	t.Setenv("GOGC", "")
	live := make([]byte, 96<<20)
	runtime.GC()
	Retune()
	current := func() int { // changes it for a moment, so that it may see the wrong one once
		state.Lock()
		defer state.Unlock()
		p := debug.SetGCPercent(100)
		debug.SetGCPercent(p)
		return p
	}
	ctx, stop := context.WithCancel(t.Context())
	b, done := NewBacklog(), make(chan struct{})
	go func() { b.Run(ctx, time.After); close(done) }()
	usual := current()
	testenv.Eventually(t, "more garbage", func() bool { b.Pending(); return current() > 2*usual })
	testenv.Eventually(t, "as much garbage as before", func() bool { return current() == usual })
	testenv.Eventually(t, "more garbage", func() bool { b.Pending(); return current() > 2*usual })
	stop()
	<-done
	if got := current(); got != usual {
		t.Errorf("GOGC %d after the end, %d before", got, usual)
	}
	runtime.KeepAlive(live)
}
