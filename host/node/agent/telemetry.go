package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/health"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// maxConns is the maximum number of connections to the health server, and to the metrics server; maxPageConns to the status page,
// maxStateConns to the state API.
const (
	maxConns      = 128
	maxPageConns  = 64
	maxStateConns = 16
)

// healthCheckPorts is the metric label of the servers on health check ports, which share a limit.
const healthCheckPorts = "health_check_node_port"

// telemetry reports the state of a running agent to its node and cluster: health checks, metrics and Events.
type telemetry struct {
	health  *health.Health
	metrics *metrics.Metrics
	log     *slog.Logger
	modes   dataplane.Modes
	config  func() *config.Config // the active one
	source  atomic.Pointer[kube.Source]
	events  *kube.EventRecorder // nil: no API server
	page    http.Handler        // the status page; nil: none
	state   http.Handler        // the state API; nil: none
	// affinity is what watchAffinity has read last.
	affinity atomic.Pointer[metrics.AffinityUsage]
}

// newTelemetry makes health checks and metrics for the engine to feed; serve starts their servers. events may be nil.
func (a *Agent) newTelemetry(events *kube.EventRecorder) *telemetry {
	cfg := a.config()
	t := &telemetry{log: a.log, modes: a.opts.Modes, config: a.config, events: events}
	t.metrics = metrics.New(metrics.Options{
		Mode: t.mode(), CurrentMode: t.mode, Version: a.opts.Version, Started: time.Now(),
		Configuration: a.configurationMetrics, Plugins: a.pluginStats, PluginMemory: a.plugins.Memory, Now: time.Now, IPVS: t.ipvsStats,
		Affinity: t.affinity.Load, Recording: a.recordingMetrics, LocalhostNodePorts: a.localhostMetrics, Retries: a.retryMetrics,
		Offload: a.offload.metrics,
	})
	t.health = health.New(health.Options{
		Now: time.Now, After: time.After, Log: a.log, SyncPeriod: cfg.SyncPeriod,
		OnAnswer: t.metrics.CountHealthCheck, StaleReason: t.staleReason,
		OnEvict: func() { t.metrics.CountEvictedConnection(healthCheckPorts) },
		OnListenError: func(service model.Name, err error) {
			events.ServiceWarning(service, kube.ReasonFailedToStartServiceHealthcheck, err.Error())
		},
	})
	return t
}

func (t *telemetry) mode() metrics.Mode {
	m := t.modes.Get(t.config().Mode)
	return metrics.Mode{Name: m.Name, NFTables: m.NFTablesMetrics}
}

// attachSource includes the state of watches in health checks and metrics. client and s are nil without an API server.
func (t *telemetry) attachSource(client *kube.Client, s *kube.Source) {
	if client == nil || s == nil {
		return
	}
	t.source.Store(s)
	client.TimeRequests(time.Now, t.metrics.ObserveRequest)
	t.metrics.SetSource(metrics.Source{
		Resources: func() (out []metrics.Resource) {
			for _, w := range s.WatchStatuses() {
				out = append(out, metrics.Resource{Name: w.Resource, Staleness: w.StaleFor})
			}
			return out
		},
		Pods: func() metrics.Pods {
			p := s.PodStats()
			return metrics.Pods{Watches: p.Watches, Pods: p.Pods, Pending: p.Services[model.PodsPending],
				Read: p.Services[model.PodsRead], Unavailable: p.Services[model.PodsUnavailable]}
		},
		Labels: func() (out []metrics.Labels) {
			for _, l := range s.LabelStats() {
				out = append(out, metrics.Labels(l))
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

// staleReason returns why the cluster state may be stale, or "" if it is not.
func (t *telemetry) staleReason() string {
	if s := t.source.Load(); s != nil {
		return printable.Escape(s.StaleReason())
	}
	return ""
}

// observers are fed by the engine in this order: health first, because load balancers wait for it.
func (t *telemetry) observers() engine.Observers {
	return engine.Observers{t.health, t.metrics, eventRecorder{
		warn: t.events.SampledServiceWarning, hold: func(c *planner.HoldChange) { recordHold(t.events, c) },
		node: t.events.NodeEvent}}
}

// metricsHandler serves the metrics and their sister pages.
func (t *telemetry) metricsHandler() http.Handler {
	return t.metrics.Handler(metrics.Pages{
		Mode: func() string { return t.config().Mode }, Profiling: t.config().EnableProfiling, Log: t.log,
		Config: func() any { return t.config().Effective() },
	})
}

// serve starts the servers for health checks and metrics; stop closes them. Listening on an address that is in use is
// retried, or, with bindAddressHardFail, reported to fatal.
func (t *telemetry) serve(ctx context.Context, fatal func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	cfg := t.config()
	var wg sync.WaitGroup
	start := func(s httpserve.Options, reason string) {
		if s.Address == "" {
			return
		}
		s.Log, s.After = t.log, time.After
		s.OnError = func(err error) {
			t.events.NodeEvent(true, reason, err.Error())
			if cfg.BindAddressHardFail {
				fatal(err)
			}
		}
		wg.Go(func() { httpserve.ListenAndServeRetry(ctx, s) })
	}
	limiter := func(server string, limit int) *httpserve.Limiter {
		return httpserve.NewLimiter(limit, func() { t.metrics.CountEvictedConnection(server) })
	}
	start(httpserve.Options{
		Name: "health checks (healthzBindAddress)", Address: cfg.HealthzBindAddress, Handler: t.health.Handler(), Limiter: limiter("healthz", maxConns),
	}, kube.ReasonFailedToStartProxierHealthcheck)
	start(httpserve.Options{
		Name: "metrics (metricsBindAddress)", Address: cfg.MetricsBindAddress, Limiter: limiter("metrics", maxConns),
		Handler: t.metricsHandler(),
	}, kube.ReasonFailedToStartMetricServer)
	if t.page != nil {
		start(httpserve.Options{
			Name: "status page (statusPageBindAddress)", Address: cfg.StatusPageBindAddress, Limiter: limiter("status_page", maxPageConns), Handler: t.page,
			OnListen: func(at net.Addr) { t.log.Info("serving the status page", "url", "http://"+at.String()+"/") },
		}, kube.ReasonFailedToStartStatusPage)
	}
	if t.state != nil {
		start(httpserve.Options{
			Name: "state API (stateBindAddress)", Address: cfg.StateBindAddress, Limiter: limiter("state", maxStateConns), Handler: t.state,
		}, kube.ReasonFailedToStartStateAPI)
	}
	return func() {
		cancel()
		wg.Wait()
		t.health.Close()
	}
}
