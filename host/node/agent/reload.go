package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// reloadOnChange loads the plugins, and then reloads configuration and plugins whenever their files change. What cannot be
// loaded is logged, and the previous version stays active.
func (a *Agent) reloadOnChange(ctx context.Context) {
	for delay := minReadRetry; ctx.Err() == nil; delay = min(2*delay, maxReadRetry) {
		err := watchFiles(ctx, a.files, a.puller.pulled, func() error { return a.reload(ctx) }, a.objects.changed, func() bool { return a.applyObjects(ctx) })
		if err == nil || ctx.Err() != nil {
			return
		}
		a.log.Error("watching configuration and plugin files failed; retrying", "err", err)
		if delay == minReadRetry {
			_ = a.reload(ctx) // the engine waits for the plugins
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// files returns the configuration file and the files that the active configuration names: plugins, and what their images are
// pulled with.
func (a *Agent) files() []string {
	out := []string{}
	if a.opts.ConfigFile != "" {
		out = append(out, a.opts.ConfigFile)
	}
	cfg := a.config()
	for _, plugin := range cfg.Plugins {
		if plugin.File != "" {
			out = append(out, plugin.File)
		}
	}
	for _, name := range []string{cfg.PluginImages.DockerConfig, cfg.PluginImages.CAFile} {
		if name != "" {
			out = append(out, name)
		}
	}
	return out
}

// reload returns what could not be read, after logging it.
func (a *Agent) reload(ctx context.Context) error {
	next, readErr := a.readConfig()
	pluginErr, err := a.activate(ctx, next, readErr)
	return errors.Join(pluginErr, err)
}

// loadPlugins loads the plugins of a configuration, with the objects as they have been read, and locks addrs. It loads again when
// the initial objects have come into force meanwhile, see planUnloaded.
func (a *Agent) loadPlugins(ctx context.Context, cfg *config.Config) (current, next *config.Config, err error) {
	for {
		current = a.config()
		next, waiting := a.withObjects(cfg)
		a.limitPlugins(next)
		_, err = a.plugins.Load(ctx, next, func() { a.pluginLoaded(ctx, next) })
		closeAll(waiting)
		switch {
		case err == nil || ctx.Err() != nil:
		case plugins.OnlyLoading(err):
			a.log.Info("plugins are still loading", "waiting", err)
		default:
			a.log.Error("loading plugins failed", "err", err)
		}
		a.pluginsReady()
		a.setNeeds(a.source, next)
		a.addrs.Lock()
		if a.config() == current {
			return current, next, err
		}
		a.addrs.Unlock()
	}
}

// activate brings a configuration into force: in the plugins, the backend, the engine, and then in everything that asks for the
// one in force, which it alone sets. What cannot be loaded, opened or applied stays as it was. readErr is why next is not what
// the file says; it is part of err, which is why the file is not in force.
func (a *Agent) activate(ctx context.Context, next *config.Config, readErr error) (pluginErr, err error) {
	current := a.config()
	next, switchErr := a.switchBackend(ctx, current, next) // first: the mode in use says which plugins can be called
	current, next, pluginErr = a.loadPlugins(ctx, next)
	applied, applyErr := a.applyConfig(ctx, current, next)
	err = errors.Join(readErr, switchErr, applyErr)
	changed := a.inForce.set(applied, err)
	a.addrs.Unlock()
	if applied != next {
		a.setNeeds(a.source, applied)
	}
	if a.opts.Logs != nil && applied.Logging.Verbosity != current.Logging.Verbosity {
		a.opts.Logs.Configure(applied)
	}
	a.plugins.CloseRetired()
	a.puller.wake()
	if ctx.Err() == nil {
		a.pluginsLoaded()
		a.reportChange(changed)
	}
	return pluginErr, err
}

// readConfig reads the configuration again. It returns the one in force if the new one is invalid, and the new one without the
// fields that need a restart; it logs each reason once.
func (a *Agent) readConfig() (*config.Config, error) {
	current := a.config()
	if a.opts.Reload == nil {
		return current, nil
	}
	next, err := a.opts.Reload()
	if err == nil {
		next, err = next.WithFixed(current)
	}
	if err == nil {
		a.lastReloadError = ""
		return next, nil
	}
	logged := err.Error() == a.lastReloadError
	a.lastReloadError = err.Error()
	if errors.As(err, new(*config.RestartError)) {
		if !logged {
			a.log.Error("fields of the configuration need a restart; the others are in force", "err", err)
		}
		return next, err
	}
	if !logged {
		a.log.Error("configuration rejected; the previous one stays active", "err", err)
	}
	return current, err
}

// switchBackend opens the backend that next asks for, and returns next with the backend that is in use afterwards.
func (a *Agent) switchBackend(ctx context.Context, current, next *config.Config) (*config.Config, error) {
	if next.SameBackend(current) {
		return next, nil
	}
	err := a.plane.Swap(ctx, a.engine, next)
	if err == nil {
		return next, nil
	}
	if ctx.Err() == nil {
		a.log.Error("switching the backend failed; the current one stays in use", "from", current.Mode, "to", next.Mode, "err", err)
	}
	return next.WithBackend(current), fmt.Errorf("mode: switching from %s to %s failed: %w", current.Mode, next.Mode, err)
}

// pluginLoaded has the engine call a plugin that has been loaded. Others may still be compiled.
func (a *Agent) pluginLoaded(ctx context.Context, cfg *config.Config) {
	a.setNeeds(a.source, cfg)
	_ = a.engine.Do(ctx, (*planner.Planner).PluginsReloaded) // an error means that sluice stops
}

// applyConfig has the engine plan with next, if it is another configuration than current, and returns the one that it plans with.
// The caller holds the lock of addrs.
func (a *Agent) applyConfig(ctx context.Context, current, next *config.Config) (*config.Config, error) {
	if next.Equal(current) {
		return next, nil
	}
	err := a.readAddrs(next)
	if err != nil {
		a.log.Error("the configuration is not applied", "err", err)
		return current.WithBackend(next), err
	}
	settings := a.planSettings(next)
	err = a.engine.Do(ctx, func(pl *planner.Planner) {
		pl.Configure(settings)
		pl.PluginsReloaded()
	})
	if err != nil {
		if ctx.Err() == nil {
			a.log.Error("applying the configuration failed", "err", err)
		}
		return current.WithBackend(next), err
	}
	return next, nil
}
