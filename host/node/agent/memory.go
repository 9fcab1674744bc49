package agent

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

// tuneMemory keeps the garbage collector's target in proportion to the cluster until ctx ends, and frees memory of idle plugins.
// At the first tick it returns startup memory to the system once more, because plugins may have been compiled after the first
// sync.
func (a *Agent) tuneMemory(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for tune := gctuner.ReleaseStartup; ; tune = gctuner.Retune {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.plugins.ReleaseIdle()
			tune()
		}
	}
}
