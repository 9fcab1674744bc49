package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/health"
	"github.com/sluice-proxy/sluice/host/httpserve"
	"github.com/sluice-proxy/sluice/host/metrics"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// observation is what a running sluice tells the node and the cluster of itself: health checks and metrics.
type observation struct {
	health  *health.Health
	metrics *metrics.Metrics
	log     *slog.Logger
	modes   dataplane.Modes
	config  atomic.Pointer[config.Config] // in force
	source  atomic.Pointer[kube.Source]   // nil: none, or a folder
	events  *kube.Recorder                // nil: there is no cluster to tell
}

// observe makes health checks and metrics, for an engine to feed; serve opens their servers. events may be nil.
func (a *Agent) observe(events *kube.Recorder) *observation {
	cfg, log := a.opts.Config, a.log
	o := &observation{log: log, events: events, modes: a.opts.Modes}
	m := metrics.New(metrics.Options{
		Mode: o.mode(cfg), CurrentMode: func() metrics.Mode { return o.mode(o.config.Load()) }, Version: a.opts.Version, Started: time.Now(),
		Plugins: a.plugins.Stats, Now: time.Now, IPVS: o.ipvs,
	})
	o.metrics, o.health = m, health.New(health.Options{
		Now: time.Now, After: time.After, Log: log, SyncPeriod: cfg.SyncPeriod, OnAnswer: m.CountHealthCheck, StaleReason: o.staleReason,
		OnListenError: func(service model.Name, err error) {
			events.ServiceWarning(service, kube.ReasonFailedToStartServiceHealthcheck, err.Error())
		},
	})
	o.config.Store(cfg)
	return o
}

func (o *observation) mode(cfg *config.Config) metrics.Mode {
	m := o.modes.Get(cfg.Mode)
	return metrics.Mode{Name: m.Name, NFTables: m.NFTablesMetrics}
}

// attachSource has health checks and metrics tell how an API server is followed; either may be nil.
func (o *observation) attachSource(client *kube.Client, s *kube.Source) {
	if client == nil || s == nil {
		return
	}
	o.source.Store(s)
	o.metrics.SetSource(metrics.Source{
		Resources: func() (out []metrics.Resource) {
			for _, c := range s.WatchStatuses() {
				out = append(out, metrics.Resource{Name: c.Resource, Staleness: c.StaleFor})
			}
			return out
		},
		Requests: func() (out []metrics.RequestCount) {
			for _, r := range client.Requests() {
				out = append(out, metrics.RequestCount(r))
			}
			return out
		},
	})
}

func (o *observation) staleReason() string {
	if s := o.source.Load(); s != nil {
		return s.StaleReason()
	}
	return ""
}

// observers are what the engine feeds: health first, as load balancers wait for it.
func (o *observation) observers() engine.Observers {
	return engine.Observers{o.health, o.metrics, eventRecorder{events: o.events}}
}

// serve opens the servers of the configuration until ctx ends; stop waits until they are closed. An address that
// cannot be had is tried again, unless fatal is wanted: then it is told the reason.
func (o *observation) serve(ctx context.Context, fatal func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	cfg := o.config.Load()
	var wg sync.WaitGroup
	open := func(s httpserve.Options, reason string) {
		if s.Address == "" {
			return
		}
		s.Log, s.After = o.log, time.After
		s.OnError = func(err error) {
			o.events.NodeEvent(true, reason, err.Error())
			if cfg.BindAddressHardFail {
				fatal(err)
			}
		}
		wg.Go(func() { httpserve.ListenAndServeRetry(ctx, s) })
	}
	open(httpserve.Options{Name: "health checks (healthzBindAddress)", Address: cfg.HealthzBindAddress, Handler: o.health.Handler()}, kube.ReasonFailedToStartProxierHealthcheck)
	open(httpserve.Options{
		Name: "metrics (metricsBindAddress)", Address: cfg.MetricsBindAddress,
		Handler: o.metrics.Handler(metrics.Pages{
			Mode: func() string { return o.config.Load().Mode }, Profiling: cfg.EnableProfiling, Log: o.log,
			Config: func() any { return o.config.Load().Effective() },
		}),
	}, kube.ReasonFailedToStartMetricServer)
	return func() {
		cancel()
		wg.Wait()
		o.health.Close()
	}
}
