package main

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/planner"
)

// watch loads the plugins, then follows the configuration file and the plugins' files, and takes in what changes.
// What cannot be is logged, and what was there before stays in force.
func (p *proxy) watch(ctx context.Context) {
	err := watchFiles(ctx, p.files, func() { p.reload(ctx) })
	if err != nil && ctx.Err() == nil {
		p.log.Error("configuration and plugins are not watched: changes need a restart", "err", fmt.Errorf("watch: %w", err))
	}
}

// files are those of the configuration in force.
func (p *proxy) files() []string {
	out := []string{}
	if p.config != "" {
		out = append(out, p.config)
	}
	for _, plugin := range p.seen.config.Load().Plugins {
		out = append(out, plugin.File)
	}
	return out
}

func (p *proxy) reload(ctx context.Context) {
	was := p.seen.config.Load()
	next := p.wanted(was)
	swapped, err := p.plugins.load(ctx, next)
	if err != nil && ctx.Err() == nil {
		p.log.Error("not every plugin could be loaded", "err", err)
	}
	next = p.changeDataPlane(ctx, was, next)
	p.seen.config.Store(next)
	p.loaded()
	p.from.wantNodes(p.plugins.wantNodes(next))
	if changed := !next.Equal(was); swapped || changed {
		p.tellEngine(ctx, next, changed)
	}
}

// wanted reads the configuration; the one in force when it cannot be taken in, which is told once a reason.
func (p *proxy) wanted(inForce *config.Config) *config.Config {
	next, err := p.load()
	if err == nil {
		err = next.CheckReload(inForce)
	}
	if err == nil {
		p.refused = ""
		return next
	}
	if err.Error() != p.refused {
		p.refused = err.Error()
		p.log.Error("the configuration cannot be taken in; the one before stays in force", "err", err)
	}
	return inForce
}

// changeDataPlane goes to the wanted one, and gives the configuration with the one that is in use then.
func (p *proxy) changeDataPlane(ctx context.Context, was, next *config.Config) *config.Config {
	if next.SameBackend(was) {
		return next
	}
	err := p.data.change(ctx, p.engine, next)
	if err == nil {
		return next
	}
	if ctx.Err() == nil {
		p.log.Error("the data plane stays as it is", "mode", was.Mode, "wanted", next.Mode, "err", err)
	}
	kept := *next
	kept.Mode, kept.IPVS = was.Mode, was.IPVS
	return &kept
}

// tellEngine has the engine plan anew, and lets go of the plugins that it no longer asks.
func (p *proxy) tellEngine(ctx context.Context, cfg *config.Config, changed bool) {
	local, err := localAddrs(cfg.IPVS.Interface)
	if err != nil {
		p.log.Error("reading this host's addresses; the configuration is not taken in", "err", err)
		return
	}
	err = p.engine.Do(ctx, func(pl *planner.Planner) {
		if changed {
			pl.Configure(settings(cfg, local))
		}
		pl.Reloaded()
	})
	if err != nil && ctx.Err() == nil {
		p.log.Error("taking the new configuration in", "err", err)
	}
	p.plugins.closeRetired()
}
