package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// addrs are what the planner is told of this host's network. The lock is held from reading to telling, so that what is older
// never replaces what is newer.
type addrs struct {
	sync.Mutex
	local []netip.Addr // on this host's links: NodePorts may be served on all of them
	hosts []netip.Addr // that must stay reachable, see planner.Settings.Hosts; sorted
	// failed is why the gateways could not be read the last time, "" if they could.
	failed string
}

// readAddrs reads both. Gateways that cannot be read stay as they are: a Service must not take them meanwhile.
func (a *Agent) readAddrs(cfg *config.Config) error {
	local, err := a.opts.Modes.LocalAddrs(cfg)
	if err != nil {
		return fmt.Errorf("reading local addresses failed: %w", err)
	}
	hosts, err := a.opts.Modes.Gateways(cfg)
	if a.opts.Client != nil {
		hosts = append(hosts, a.opts.Client.Peers()...)
	}
	a.addrs.local = local
	text := ""
	if err != nil {
		hosts = append(hosts, a.addrs.hosts...)
		if text = err.Error(); text != a.addrs.failed {
			a.log.Warn("reading the gateways of routes failed; those that are known stay in force", "err", err)
		}
	}
	slices.SortFunc(hosts, netip.Addr.Compare)
	a.addrs.hosts, a.addrs.failed = slices.Compact(hosts), text
	return nil
}

// watchAddrs tells the planner of addresses that change, every sync period and when there are other connections to the API
// server, until ctx ends.
func (a *Agent) watchAddrs(ctx context.Context) {
	tick := time.NewTicker(a.config().SyncPeriod)
	defer tick.Stop()
	var connected <-chan struct{}
	if a.opts.Client != nil {
		connected = a.opts.Client.PeersChanged()
	}
	for {
		if err := a.tellAddrs(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("the last known addresses of this host stay in force", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-tick.C:
		}
	}
}

func (a *Agent) tellAddrs(ctx context.Context) error {
	a.addrs.Lock()
	defer a.addrs.Unlock()
	if err := a.readAddrs(a.config()); err != nil {
		return err
	}
	local, hosts := a.addrs.local, a.addrs.hosts
	return a.engine.Do(ctx, func(pl *planner.Planner) { pl.SetLocalAddrs(local); pl.SetHosts(hosts) })
}
