package agent

import (
	"context"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// NewPlanner returns a planner for run and for the commands that plan once. local are addresses of the node in addition to
// those of its Node object.
func NewPlanner(cfg *config.Config, local []netip.Addr, set *plugins.Set) *planner.Planner {
	return planner.New(PlanSettings(cfg, local), set.Get)
}

// PlanSettings returns the settings of a configuration for the planner.
func PlanSettings(cfg *config.Config, local []netip.Addr) planner.Settings {
	mode := dataplane.All().Get(cfg.Mode)
	return planner.Settings{
		Planning:         cfg.Planning,
		Node:             cfg.HostnameOverride,
		MasqueradeMark:   cfg.MasqueradeMark(),
		PodSources:       cfg.PodSources(),
		PodInterfaces:    cfg.PodInterfaces(),
		PodsOfNode:       cfg.DetectLocalMode == config.NodeCIDR,
		NodePortPrefixes: cfg.NodePortAddresses.Prefixes,
		NodePortPrimary:  cfg.NodePortAddresses.Primary,
		LocalAddrs:       local,
		BindsAddresses:   mode.BindsAddresses(),
		PodRanges:        cfg.ClusterCIDR,
		Policies:         cfg.PolicySet(),
		ClusterRanges:    cfg.ClusterRanges(),
		OutcomeNeeds:     mode.OutcomeNeeds,
		CountAll:         cfg.Metrics.ServiceConnections == config.ConnectionsAll,
	}
}

// configureOnce brings objects into force before the state is programmed once.
func (a *Agent) configureOnce(ctx context.Context) {
	next, _ := a.withObjects(a.config())
	if _, err := a.plugins.Load(ctx, next, nil); err != nil {
		a.log.Error("loading plugins failed; their Services use the default rules", "err", err)
	}
	a.setNeeds(a.source, next)
	settings := a.planSettings(next)
	_ = a.engine.Do(ctx, func(p *planner.Planner) { p.Configure(settings) }) // an error means that sluice stops
}

// planSettings returns PlanSettings, with the API server that is in use and the addresses that were read last.
func (a *Agent) planSettings(cfg *config.Config) planner.Settings {
	s := PlanSettings(cfg, a.addrs.local)
	if a.opts.Client != nil {
		s.ClusterRanges = append(s.ClusterRanges, config.ServerRange(a.opts.Client.Server())...)
	}
	s.Hosts = a.addrs.hosts
	return s
}
