package agent

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/planner"
)

// followLocalAddrs reads the addresses on this host's links from time to time, as NodePorts may be wanted on all of
// them. It ends with ctx.
func (a *Agent) followLocalAddrs(ctx context.Context) {
	tick := time.NewTicker(a.opts.Config.SyncPeriod)
	defer tick.Stop()
	for last := a.local; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := a.opts.Modes.LocalAddrs(a.seen.config.Load())
		if err != nil {
			a.log.Warn("reading this host's addresses", "err", err)
			continue
		}
		if slices.Equal(now, last) {
			continue
		}
		if err := a.engine.Do(ctx, func(pl *planner.Planner) { pl.SetLocalAddrs(now) }); err != nil {
			return // the engine ends
		}
		last = now
		a.log.Debug("this host's addresses have changed", "addresses", now)
	}
}
