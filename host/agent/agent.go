// Package agent is what `sluice run` runs on a node: cluster state from a source, decisions from plugins, a plan from the
// engine into the data plane, and health checks, metrics and state for others.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/agent/state"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/gctuner"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// Options of an Agent.
type Options struct {
	Config     *config.Config // at the start, checked
	ConfigFile string         // watched for changes; "": none
	// Reload reads the configuration again, as Config was read; nil: it stays.
	Reload func() (*config.Config, error)
	// Client watches the cluster through the API server. Without one, the cluster is in the folder Manifests.
	Client    *kube.Client
	Manifests string

	Modes           dataplane.Modes // nil: dataplane.All
	Socket          string          // path of the state socket; "": none
	Checkpoint      string          // path of the checkpoint file; "": none
	Once            bool            // Run programs the present state and returns
	RemoveKubeProxy bool            // remove what kube-proxy has left, once the data plane is in sync
	Version         string          // of sluice
	Log             *slog.Logger
}

// Agent runs the proxy of one node.
type Agent struct {
	opts          Options
	log           *slog.Logger
	local         []netip.Addr // of this host, at the start
	plane         *dataplane.Plane
	plugins       *plugins.Set
	seen          *observation // has the configuration in force
	source        clusterSource
	pluginsLoaded func() // tells the engine that plugins can be asked
	engine        *engine.Engine
	background    sync.WaitGroup
	// lastReloadError is why the configuration file was refused the last time.
	lastReloadError string
}

// New returns an agent; nothing is opened before Run.
func New(o Options) *Agent {
	if o.Modes == nil {
		o.Modes = dataplane.All()
	}
	return &Agent{opts: o, log: o.Log}
}

// Run runs the agent until ctx ends or something fails that it cannot do without. Whatever it has opened is closed again;
// the kernel goes on forwarding.
func (a *Agent) Run(ctx context.Context) (err error) {
	cfg := a.opts.Config
	if a.local, err = a.opts.Modes.LocalAddrs(cfg); err != nil {
		return err
	}
	if a.plane, err = dataplane.Open(a.opts.Modes, cfg, a.log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.plane.Close()) }()
	if a.plugins, err = plugins.Open(ctx, cfg, a.log); err != nil {
		return err
	}
	defer a.plugins.Close(ctx)
	if a.opts.Once {
		return a.programOnce(ctx)
	}
	return a.runLoop(ctx)
}

// engineOptions are those of programOnce and runLoop.
func (a *Agent) engineOptions() engine.Options {
	cfg := a.opts.Config
	o := engine.Options{
		Backend:       a.plane.Backend(),
		Planner:       NewPlanner(cfg, a.local, a.plugins),
		ConnTable:     conntrack.Table{},
		Log:           a.log,
		MinSyncPeriod: cfg.MinSyncPeriod, SyncPeriod: cfg.SyncPeriod,
		Once: a.opts.Once,
	}
	if a.opts.Checkpoint != "" {
		o.Checkpoint = checkpointFile(a.opts.Checkpoint)
	}
	return o
}

// programOnce programs the present state, and what follows from it.
func (a *Agent) programOnce(ctx context.Context) error {
	cfg := a.opts.Config
	if _, err := a.plugins.Load(ctx, cfg); err != nil {
		a.log.Error("not every plugin could be loaded; their Services get the default rules", "err", err)
	}
	o := a.engineOptions()
	source := a.openSource(nil)
	a.setNeeds(source, cfg)
	o.Source = source
	if err := engine.New(o).Run(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := a.plane.DrainOnce(ctx); err != nil {
		return err
	}
	if a.opts.RemoveKubeProxy {
		return removeLeftovers(ctx, a.log)
	}
	return nil
}

// runLoop runs the engine and everything around it.
func (a *Agent) runLoop(ctx context.Context) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	a.build(running)
	stopSocket, err := state.Serve(a.opts.Socket, a.engine, a.log)
	if err != nil {
		return err
	}
	defer stopSocket()
	defer a.seen.serve(running, fail)()
	a.startBackground(running)
	defer func() { fail(nil); a.background.Wait() }()
	cfg := a.opts.Config
	a.log.Info("sluice runs", "version", a.opts.Version, "node", cfg.HostnameOverride, "source", a.source.name, "mode", cfg.Mode)
	err = a.engine.Run(running)
	a.log.Info("sluice ends; the data plane forwards on")
	if ctx.Err() == nil { // it was not asked to end
		err = errors.Join(context.Cause(running), err)
	}
	return err
}

// build makes the engine, its source and its observers. It starts none of them.
func (a *Agent) build(ctx context.Context) {
	cfg := a.opts.Config
	var events *kube.Recorder
	if a.opts.Client != nil {
		events = kube.NewRecorder(a.opts.Client, cfg.HostnameOverride, a.log, time.Now, time.After)
		events.NodeEvent(false, kube.ReasonStarting, "sluice "+a.opts.Version+", mode "+cfg.Mode)
	}
	a.seen = a.observe(events)
	a.source = a.openSource(a.seen.metrics.SetSourceProblems)
	a.seen.attachSource(a.opts.Client, a.source.kube)
	synced := &onFirstSync{start: a.background.Go, do: []func(){gctuner.ReleaseStartup, a.plane.DrainOthers}}
	if a.opts.RemoveKubeProxy {
		synced.do = append(synced.do, func() { drainLeftovers(ctx, a.log) })
	}
	loaded := make(chan struct{})
	a.pluginsLoaded = sync.OnceFunc(func() { close(loaded) })
	o := a.engineOptions()
	o.Source, o.Observer, o.PluginsReady = a.source, append(a.seen.observers(), synced), loaded
	a.engine = engine.New(o)
}

// startBackground starts what runs beside the engine until ctx ends.
func (a *Agent) startBackground(ctx context.Context) {
	if events := a.seen.events; events != nil {
		a.background.Go(func() { events.Run(ctx) })
	}
	a.background.Go(func() { a.watchFiles(ctx) })
	a.background.Go(func() { a.followLocalAddrs(ctx) })
	a.background.Go(func() { tuneGC(ctx, a.opts.Config.SyncPeriod) })
}
