package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/planner"
)

// watchLocalAddrs reads the addresses on this host's links and the hosts that it needs every sync period, because NodePorts may be served on
// all of the former and the latter must stay reachable, until ctx ends.
func (a *Agent) watchLocalAddrs(ctx context.Context) {
	tick := time.NewTicker(a.opts.Config.SyncPeriod)
	defer tick.Stop()
	var connected <-chan struct{}
	if a.opts.Client != nil {
		connected = a.opts.Client.PeersChanged()
	}
	for last, hosts := a.local, a.neededHosts(a.config.Load()); ; {
		select {
		case <-ctx.Done():
			return
		case <-connected:
		case <-tick.C:
		}
		addrs, err := a.opts.Modes.LocalAddrs(a.config.Load())
		if err != nil {
			a.log.Warn("reading local addresses failed", "err", err)
			continue
		}
		now := a.neededHosts(a.config.Load())
		if slices.Equal(addrs, last) && slices.Equal(now, hosts) {
			continue
		}
		if err := a.engine.Do(ctx, func(pl *planner.Planner) { pl.SetLocalAddrs(addrs); pl.SetHosts(now) }); err != nil {
			return // the engine has stopped
		}
		last, hosts = addrs, now
		a.log.Debug("addresses changed", "local", addrs, "hosts", hosts)
	}
}

// neededHosts returns planner.Settings.Hosts: the gateways of routes, and where the connections to the API server lead.
func (a *Agent) neededHosts(cfg *config.Config) []netip.Addr {
	hosts, err := a.opts.Modes.Gateways(cfg)
	if err != nil {
		a.log.Warn("reading the gateways of routes failed; Services may take their addresses", "err", err)
	}
	if a.opts.Client != nil {
		hosts = append(hosts, a.opts.Client.Peers()...)
	}
	return hosts
}
