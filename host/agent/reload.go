package agent

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/planner"
)

// watchFiles loads the plugins, then follows the configuration file and the plugins' files, and takes in what changes.
// What cannot be is logged, and what was there before stays in force.
func (a *Agent) watchFiles(ctx context.Context) {
	err := onFileChange(ctx, a.files, func() { a.reload(ctx) })
	if err != nil && ctx.Err() == nil {
		a.log.Error("configuration and plugins are not watched: changes need a restart", "err", fmt.Errorf("watch: %w", err))
	}
}

// files are those of the configuration in force.
func (a *Agent) files() []string {
	out := []string{}
	if a.opts.ConfigFile != "" {
		out = append(out, a.opts.ConfigFile)
	}
	for _, plugin := range a.seen.config.Load().Plugins {
		out = append(out, plugin.File)
	}
	return out
}

func (a *Agent) reload(ctx context.Context) {
	was := a.seen.config.Load()
	next := a.wanted(was)
	swapped, err := a.plugins.Load(ctx, next)
	if err != nil && ctx.Err() == nil {
		a.log.Error("not every plugin could be loaded", "err", err)
	}
	next = a.changeDataPlane(ctx, was, next)
	a.seen.config.Store(next)
	a.pluginsLoaded()
	a.setNeeds(a.source, next)
	if changed := !next.Equal(was); swapped || changed {
		a.tellEngine(ctx, next, changed)
	}
}

// wanted reads the configuration; the one in force when it cannot be taken in, which is told once a reason.
func (a *Agent) wanted(inForce *config.Config) *config.Config {
	if a.opts.Reload == nil {
		return inForce
	}
	next, err := a.opts.Reload()
	if err == nil {
		err = next.CheckReload(inForce)
	}
	if err == nil {
		a.lastReloadError = ""
		return next
	}
	if err.Error() != a.lastReloadError {
		a.lastReloadError = err.Error()
		a.log.Error("the configuration cannot be taken in; the one before stays in force", "err", err)
	}
	return inForce
}

// changeDataPlane goes to the wanted one, and gives the configuration with the one that is in use then.
func (a *Agent) changeDataPlane(ctx context.Context, was, next *config.Config) *config.Config {
	if next.SameBackend(was) {
		return next
	}
	err := a.plane.Swap(ctx, a.engine, next)
	if err == nil {
		return next
	}
	if ctx.Err() == nil {
		a.log.Error("the data plane stays as it is", "mode", was.Mode, "wanted", next.Mode, "err", err)
	}
	return next.WithBackend(was)
}

// tellEngine has the engine plan anew, and lets go of the plugins that it no longer asks.
func (a *Agent) tellEngine(ctx context.Context, cfg *config.Config, changed bool) {
	local, err := a.opts.Modes.LocalAddrs(cfg)
	if err != nil {
		a.log.Error("reading this host's addresses; the configuration is not taken in", "err", err)
		return
	}
	err = a.engine.Do(ctx, func(pl *planner.Planner) {
		if changed {
			pl.Configure(PlanSettings(cfg, local))
		}
		pl.PluginsReloaded()
	})
	if err != nil && ctx.Err() == nil {
		a.log.Error("taking the new configuration in", "err", err)
	}
	a.plugins.CloseRetired()
}
