// Package agent implements `sluice run`: it connects a source of cluster state, plugins and the engine to the data plane of
// one node, and serves health checks, metrics and the state socket.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/dispatch"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/agent/recorder"
	"github.com/sluice-proxy/sluice/host/node/agent/reporter"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/agent/statuspage"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/localhostproxy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

// Options of an Agent.
type Options struct {
	Config     *config.Config // to start with: validated, with the node's name
	ConfigFile string         // watched for changes; "": none
	// Reload reads the configuration again in the same way as Config was read; nil: it never changes.
	Reload func() (*config.Config, error)
	// Client is for the API server to watch. If it is nil, the cluster state is read from the directory Manifests.
	Client    *kube.Client
	Manifests string

	Modes           dataplane.Modes // nil: dataplane.All
	Socket          string          // path of the state socket; "": none
	Checkpoint      string          // path of the checkpoint file; "": none
	Once            bool            // Run programs the current state and returns
	Record          RecordOptions
	RemoveKubeProxy bool                // remove what kube-proxy has left in the kernel, after the first sync
	ExtendStop      func(time.Duration) // called before the agent takes longer to stop: handOver
	Version         string              // of sluice
	PluginCompiler  []string            // see wasm.Options.Compiler
	PluginProcess   []string            // see wasm.Options.Process
	Precompiled     wasm.Precompiled    // likewise
	Log             *slog.Logger
	Logs            *Logs // of Log: its level can be set; nil: it cannot
}

// Agent is the Service proxy of one node.
type Agent struct {
	opts         Options
	log          *slog.Logger
	addrs        addrs
	plane        *dataplane.Plane
	plugins      *plugins.Set
	puller       *puller
	calls        *dispatch.Dispatcher
	telemetry    *telemetry
	localhost    *localhostproxy.Proxy
	offload      *offloader
	source       clusterSource
	pluginsReady func() // signals the engine that the plugins are loaded
	engine       *engine.Engine
	background   sync.WaitGroup
	// lastReloadError is the reason that was last logged for rejecting the configuration file.
	lastReloadError string
	inForce         inForce
	objects         *objects
	started         time.Time
	progress        *progress
	backlog         *gctuner.Backlog
	history         *statuspage.History                     // nil: there is no status page
	recorder        *recorder.Recorder                      // nil: nothing is recorded
	nodeEvent       func(warning bool, reason, note string) // records an Event about this node
}

// config returns the configuration in force.
func (a *Agent) config() *config.Config { return a.inForce.config() }

// New returns an agent. It opens nothing.
func New(o Options) *Agent {
	if o.Modes == nil {
		o.Modes = dataplane.All()
	}
	a := &Agent{opts: o, log: o.Log, started: time.Now(), progress: &progress{}, objects: newObjects()}
	a.nodeEvent = func(warning bool, reason, note string) { a.telemetry.events.NodeEvent(warning, reason, note) }
	a.inForce.set(o.Config, nil)
	return a
}

// Run runs the agent until ctx ends or an error occurs that it cannot continue after. An Agent runs once. Run closes
// everything that it opens; the kernel keeps forwarding.
func (a *Agent) Run(ctx context.Context) (err error) {
	cfg := a.config()
	if err := a.readAddrs(cfg); err != nil {
		return err
	}
	if a.plane, err = dataplane.Open(a.opts.Modes, cfg, a.log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.closePlane()) }()
	if a.plugins, err = plugins.Open(ctx, cfg, plugins.Options{Modes: a.opts.Modes, Compiler: a.opts.PluginCompiler, Process: a.opts.PluginProcess, Precompiled: a.opts.Precompiled, Log: a.log}); err != nil {
		return err
	}
	a.plugins.LoadCachedOnly() // a registry may be behind a Service that sluice makes
	a.puller = newPuller(a.plugins, a.config, a.log)
	reserveCPU(1)
	a.calls = dispatch.New(dispatch.Options{CPUPercent: a.cpuPercent(cfg), Log: a.log})
	defer a.end(ctx)
	if a.opts.Once {
		return a.programOnce(ctx)
	}
	return a.runLoop(ctx)
}

// engineOptions returns the options that programOnce and runLoop share.
func (a *Agent) engineOptions() engine.Options {
	cfg := a.config()
	o := engine.Options{
		Backend:       a.plane.Backend(),
		Planner:       planner.New(a.planSettings(cfg), a.plugins.Get),
		ConnTable:     &conntrack.Table{},
		Plugins:       a.calls,
		Log:           a.log,
		Clock:         clock(a.log),
		MinSyncPeriod: cfg.MinSyncPeriod, SyncPeriod: cfg.SyncPeriod, SignalsPeriod: cfg.Signals.Period, ThreadCPU: threadCPU,
		Once: a.opts.Once,
	}
	if a.opts.Checkpoint != "" {
		o.Checkpoint = checkpointFile(a.opts.Checkpoint)
	}
	return o
}

// programOnce programs the current state, and removes what other modes and kube-proxy have left.
func (a *Agent) programOnce(ctx context.Context) error {
	cfg := a.config()
	if _, err := a.plugins.Load(ctx, cfg, nil); err != nil {
		a.log.Error("loading plugins failed; their Services use the default rules", "err", err)
	}
	o := a.engineOptions()
	for _, p := range cfg.Policies {
		if p.Guard != nil {
			a.log.Warn("a policy with a guard is in force only where the checkpoint says so: run once, sluice counts no connections", "policy", p.Name)
		}
	}
	source := a.openSource(nil)
	a.setNeeds(source, cfg)
	a.source = source
	o.Source = objectSource{source, a.objects, a.configureOnce, 0}
	a.engine = engine.New(o)
	watching, stop := context.WithCancel(ctx)
	a.background.Go(func() { a.watchAddrs(watching) })
	err := a.engine.Run(ctx)
	stop()
	if err != nil || ctx.Err() != nil {
		return err
	}
	if err := a.plane.DrainOnce(ctx); err != nil {
		return err
	}
	if a.opts.RemoveKubeProxy {
		return removeLeftovers(ctx, a.config(), a.log)
	}
	return nil
}

// runLoop runs the engine, its background tasks and servers.
func (a *Agent) runLoop(ctx context.Context) error {
	a.plugins.LoadInBackground(func() { signal(a.puller.pulled) })
	running, fail := context.WithCancelCause(context.WithoutCancel(ctx)) // handOver may go on after ctx
	defer fail(nil)                                                      // ends the tasks in the background
	if err := a.startRecording(); err != nil {
		return err
	}
	defer a.stopRecording()
	a.build(running)
	defer a.localhost.Close()
	readable := state.Agent{
		Engine: a.engine, NodeName: a.config().HostnameOverride, Node: a.nodeState, Status: a.report, Connections: state.Paced(a.openConnections), SetLogLevel: a.setLogLevel, LogTail: a.logTail,
		ThrottledSince: a.calls.ThrottledSince,
		Config:         func() any { return a.config().Effective() }, Metrics: a.telemetry.metricsHandler(),
	}
	stopSocket, err := state.Serve(a.opts.Socket, readable, a.log)
	if err != nil {
		return err
	}
	defer stopSocket()
	if a.history != nil {
		a.telemetry.page = statuspage.New(&readable, a.history)
	}
	if cfg := a.config(); cfg.StateBindAddress != "" && a.opts.Client == nil {
		a.log.Warn("stateBindAddress: there is no state API, as the cluster state is not read from an API server, which would review the tokens of callers")
	} else if cfg.StateBindAddress != "" {
		a.telemetry.state = (&state.Authorizer{Review: reviewBy(a.opts.Client, cfg.HostnameOverride), Now: time.Now, Log: a.log}).Handler(readable)
	}
	stopServers := sync.OnceFunc(a.telemetry.serve(running, fail))
	defer stopServers()
	a.startBackground(running)
	handedOver := make(chan bool, 1)
	defer context.AfterFunc(ctx, func() {
		handedOver <- a.handOver(running, stopServers)
		fail(nil)
	})()
	cfg := a.config()
	a.log.Info("sluice started", "version", a.opts.Version, "node", cfg.HostnameOverride, "source", a.source.name, "mode", cfg.Mode)
	err = a.engine.Run(running)
	switch {
	case ctx.Err() == nil: // not asked to stop
		err = errors.Join(context.Cause(running), err)
	case <-handedOver:
		return errors.Join(err, a.removeTables(context.WithoutCancel(ctx)))
	}
	a.log.Info("sluice stopped; the kernel keeps forwarding")
	return err
}

// reviewBy returns an Authorizer.Review that asks an API server.
func reviewBy(client *kube.Client, node string) func(context.Context, string) error {
	return func(ctx context.Context, token string) error {
		err := client.AuthorizeServiceReader(ctx, token, api.Audience(node))
		switch {
		case errors.Is(err, kube.ErrUnauthenticated):
			return fmt.Errorf("%w: %w", state.ErrUnauthenticated, err)
		case errors.Is(err, kube.ErrForbidden):
			return fmt.Errorf("%w: %w", state.ErrForbidden, err)
		}
		return err
	}
}

// build makes the engine, its source and its observers, and starts none of them.
func (a *Agent) build(ctx context.Context) {
	cfg := a.config()
	var events *kube.EventRecorder
	if a.opts.Client != nil {
		events = kube.NewEventRecorder(a.opts.Client, cfg.HostnameOverride, a.log, time.Now, time.After)
		events.NodeEvent(false, kube.ReasonStarting, "sluice "+a.opts.Version+", mode "+cfg.Mode)
	}
	a.localhost = newLocalhostProxy(a.log)
	a.offload = &offloader{backend: a.plane.Backend, log: a.log}
	a.telemetry = a.newTelemetry(events)
	a.source = a.openSource(a.telemetry.metrics.SetSourceProblems)
	a.telemetry.attachSource(a.opts.Client, a.source.kube)
	synced := &onFirstSync{start: a.background.Go, tasks: []func(){gctuner.ReleaseStartup, a.plane.DrainOthers}}
	if a.opts.RemoveKubeProxy {
		synced.tasks = append(synced.tasks, func() { drainLeftovers(ctx, a.config(), a.log) })
	}
	loaded := make(chan struct{})
	a.pluginsReady = sync.OnceFunc(func() { close(loaded) })
	o := a.engineOptions()
	a.backlog = gctuner.NewBacklog()
	observers := append(a.telemetry.observers(), a.localhost, synced, a.progress, &engine.BacklogObserver{Pending: a.backlog.Pending})
	if cfg.StatusPageBindAddress != "" {
		a.history = statuspage.NewHistory()
		observers = append(observers, a.history)
	}
	o.Source, o.Observer, o.PluginsReady = objectSource{a.source, a.objects, a.planUnloaded, objectsWait}, observers, loaded
	if a.recorder != nil {
		o.Recorder = a.recorder
	}
	a.engine = engine.New(o)
}

// startBackground starts the tasks that run until ctx ends.
func (a *Agent) startBackground(ctx context.Context) {
	gctuner.ReleaseProgram() // before plugins take memory
	if events := a.telemetry.events; events != nil {
		a.background.Go(func() { events.Run(ctx) })
	}
	if a.opts.Client != nil {
		r := &reporter.Reporter{Report: a.nodeReport, Writer: &kube.ReportWriter{Client: a.opts.Client, Node: a.config().HostnameOverride}, Log: a.log}
		a.background.Go(func() { r.Run(ctx, a.objects.first) })
	}
	a.background.Go(func() { a.reloadOnChange(ctx) })
	a.background.Go(func() { a.puller.run(ctx) })
	a.background.Go(func() {
		tick := time.NewTicker(remindInterval)
		defer tick.Stop()
		a.remind(ctx, tick.C)
	})
	a.background.Go(func() { a.watchAddrs(ctx) })
	a.background.Go(func() { a.watchAffinity(ctx) })
	a.background.Go(func() { a.offload.run(ctx) })
	a.background.Go(func() { a.tuneMemory(ctx, a.config().SyncPeriod) })
	a.background.Go(func() { a.backlog.Run(ctx, time.After) })
}
