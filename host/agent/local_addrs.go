package agent

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/planner"
)

// watchLocalAddrs reads the addresses on this host's links every sync period, because NodePorts may be served on all of
// them, until ctx ends.
func (a *Agent) watchLocalAddrs(ctx context.Context) {
	tick := time.NewTicker(a.opts.Config.SyncPeriod)
	defer tick.Stop()
	for last := a.local; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		addrs, err := a.opts.Modes.LocalAddrs(a.config.Load())
		if err != nil {
			a.log.Warn("reading local addresses failed", "err", err)
			continue
		}
		if slices.Equal(addrs, last) {
			continue
		}
		if err := a.engine.Do(ctx, func(pl *planner.Planner) { pl.SetLocalAddrs(addrs) }); err != nil {
			return // the engine has stopped
		}
		last = addrs
		a.log.Debug("local addresses changed", "addresses", addrs)
	}
}
