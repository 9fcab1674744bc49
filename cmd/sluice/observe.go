package main

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/health"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/serve"
)

// observation is what a running sluice tells the node and the cluster of itself: health checks and metrics.
type observation struct {
	health  *health.Health
	metrics *metrics.Metrics
	log     *slog.Logger
	config  atomic.Pointer[config.Config] // in force
}

// observe makes health checks and metrics, for an engine to feed; serve opens their servers.
func observe(cfg *config.Config, plugins *pluginSet, log *slog.Logger) *observation {
	m := metrics.New(metrics.Options{Mode: cfg.Mode, Version: buildVersion(), Started: time.Now(), Plugins: plugins.stats})
	o := &observation{metrics: m, log: log, health: health.New(health.Options{
		Now: time.Now, After: time.After, Log: log, SyncPeriod: cfg.SyncPeriod, Answered: m.Answered,
	})}
	o.config.Store(cfg)
	return o
}

// observer is what the engine feeds: health first, as load balancers wait for it.
func (o *observation) observer() engine.Observer { return observers{o.health, o.metrics} }

// serve opens the servers of the configuration until ctx ends; stop waits until they are closed. An address that
// cannot be had is tried again, unless fatal is wanted: then it is told the reason.
func (o *observation) serve(ctx context.Context, fatal func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	cfg := o.config.Load()
	var wg sync.WaitGroup
	open := func(s serve.Options) {
		if s.Address == "" {
			return
		}
		s.Log, s.After = o.log, time.After
		if cfg.BindAddressHardFail {
			s.Failed = fatal
		}
		wg.Go(func() { serve.Keep(ctx, s) })
	}
	open(serve.Options{Name: "health checks (healthzBindAddress)", Address: cfg.HealthzBindAddress, Handler: o.health.Handler()})
	open(serve.Options{
		Name: "metrics (metricsBindAddress)", Address: cfg.MetricsBindAddress,
		Handler: o.metrics.Handler(metrics.Pages{
			Mode: cfg.Mode, Profiling: cfg.EnableProfiling, Log: o.log,
			Config: func() any { return o.config.Load().Effective() },
		}),
	})
	return func() {
		cancel()
		wg.Wait()
		o.health.Close()
	}
}

// observers are told one after another.
type observers []engine.Observer

// Queued implements engine.Observer.
func (o observers) Queued(changes []model.Change, at time.Time) {
	for _, each := range o {
		each.Queued(changes, at)
	}
}

// Taken implements engine.Observer.
func (o observers) Taken() {
	for _, each := range o {
		each.Taken()
	}
}

// Planned implements engine.Observer.
func (o observers) Planned(p *engine.Planned) {
	for _, each := range o {
		each.Planned(p)
	}
}

// Programmed implements engine.Observer.
func (o observers) Programmed(p *engine.Programmed) {
	for _, each := range o {
		each.Programmed(p)
	}
}

// Noted implements engine.Observer.
func (o observers) Noted(n engine.Note) {
	for _, each := range o {
		each.Noted(n)
	}
}
