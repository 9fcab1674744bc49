package engine_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
)

// TestUpdatesAreSummarizedOnceAMinute: each has a line at debug level that says what has changed and why, and a line a minute
// tells of all.
func TestUpdatesAreSummarizedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		r.level = slog.LevelDebug
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(svc(), eps(1), synced)
		r.advance(time.Second)
		r.emit(eps(1, 2))
		r.advance(time.Second)
		r.emit(eps(2, 3))
		r.advance(2 * time.Minute)
		log := r.log.String()
		for want, n := range map[string]int{
			`msg="synced services"`: 2, "level=INFO msg=updates updates=2 frontends=2": 1,
			`what="10.96.0.1:80/TCP 1 endpoints added" why="EndpointSlice 1"`:                      1,
			`what="10.96.0.1:80/TCP 1 endpoints added, 1 endpoints removed" why="EndpointSlice 1"`: 1,
		} {
			if got := strings.Count(log, want); got != n {
				t.Errorf("%d times %s, want %d:\n%s", got, want, n, log)
			}
		}
		if strings.Count(log, "level=INFO") != 2 {
			t.Errorf("more lines at info level:\n%s", log)
		}
	})
}
