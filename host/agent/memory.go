package agent

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/gctuner"
)

// tuneGC keeps this process's memory near what it needs until ctx ends: it gives back once more what the start took,
// when the plugins have been loaded too, and then follows the cluster's size.
func tuneGC(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for do := gctuner.ReleaseStartup; ; do = gctuner.Retune {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}
