package main

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/footprint"
)

// keepSmall keeps this process's memory near what it needs until stop: it gives back what the start took, once the data
// plane holds the first plan and once more when the plugins have been loaded too, and then follows the cluster's size.
// The observer that it gives tells what it has to know, and the one that it is given.
func keepSmall(ctx context.Context, o engine.Observer, every time.Duration) (_ engine.Observer, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	first := &firstHeld{Observer: o, do: footprint.Settle}
	first.wait.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for do := footprint.Settle; ; do = footprint.Adjust {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				do()
			}
		}
	})
	return first, func() { cancel(); first.wait.Wait() }
}
