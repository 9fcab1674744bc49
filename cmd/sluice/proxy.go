package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/gctuner"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// proxy has the parts of `sluice run`, in the order in which they come to be.
type proxy struct {
	*runFlags
	cfg     *config.Config // at the start; seen.config is what is in force
	log     *slog.Logger
	client  *kube.Client // nil: the cluster's state comes from a folder
	local   []netip.Addr // of this host, at the start
	data    *dataPlane
	plugins *pluginSet
	seen    *observation
	from    clusterSource
	loaded  func() // tells the engine that plugins can be asked
	engine  *engine.Engine
	beside  sync.WaitGroup // what goes on beside the engine
	refused string         // why the configuration file was, the last time
}

func (f *runFlags) newProxy() (*proxy, error) {
	cfg, err := f.load()
	if err != nil {
		return nil, err
	}
	p := &proxy{runFlags: f, cfg: cfg, log: newLogger(cfg, f.verbosity)}
	kube.RedirectKlog(p.log)
	if f.source == "" {
		if p.client, err = f.connect(cfg); err != nil {
			return nil, err
		}
	}
	for _, w := range cfg.Warnings() {
		p.log.Warn("configuration", "warning", w)
	}
	return p, nil
}

// prepareNode makes sure of being the only proxy here, and brings kernel and process to what is configured.
func (p *proxy) prepareNode(ctx context.Context) (err error) {
	if err := refuseKubeProxy(ctx, "sluice does not run beside it"); err != nil {
		return err
	}
	if !p.kubeProxy {
		tellLeftovers(ctx, p.log)
	}
	prepare(p.cfg, p.log)
	p.local, err = localAddrs(p.cfg.IPVS.Interface)
	return err
}

// options are those of the engine, whichever way it is run.
func (p *proxy) options() engine.Options {
	o := engine.Options{
		Backend:       p.data.backend,
		Planner:       planner.New(settings(p.cfg, p.local), p.plugins.get),
		ConnTable:     conntrack.Table{},
		Log:           p.log,
		MinSyncPeriod: p.cfg.MinSyncPeriod, SyncPeriod: p.cfg.SyncPeriod,
		Once: p.once,
	}
	if p.checkpoint != "" {
		o.Checkpoint = checkpointFile(p.checkpoint)
	}
	return o
}

// programOnce programs the present state, and what follows from it.
func (p *proxy) programOnce(ctx context.Context) error {
	if _, err := p.plugins.load(ctx, p.cfg); err != nil {
		p.log.Error("not every plugin could be loaded; their Services get the default rules", "err", err)
	}
	o := p.options()
	from := p.open(p.cfg, p.client, p.log, nil)
	from.wantNodes(p.plugins.wantNodes(p.cfg))
	o.Source = from
	if err := engine.New(o).Run(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if p.cfg.Mode != config.ModeIPVS {
		if _, err := ipvs.DrainAll(ctx, ipvsOptions(p.cfg, p.log), false); err != nil && !errors.Is(err, ipvs.ErrNoIPVS) {
			return err
		}
	}
	if p.kubeProxy {
		return removeLeftovers(ctx, p.log)
	}
	return nil
}

// keep keeps the kernel at the plan until ctx ends, or something fails that sluice is not to go on without.
func (p *proxy) keep(ctx context.Context) error {
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	p.assemble(running)
	stopSocket, err := serveState(p.socket, p.engine, p.log)
	if err != nil {
		return err
	}
	defer stopSocket()
	defer p.seen.serve(running, fail)()
	p.accompany(running)
	defer func() { fail(nil); p.beside.Wait() }()
	p.log.Info("sluice runs", "version", buildVersion(), "node", p.cfg.HostnameOverride, "source", p.from.name, "mode", p.cfg.Mode)
	err = p.engine.Run(running)
	p.log.Info("sluice ends; the data plane forwards on")
	if ctx.Err() == nil { // it was not asked to end
		err = errors.Join(context.Cause(running), err)
	}
	return err
}

// assemble makes the engine, what feeds it and what it feeds. Nothing of it begins here.
func (p *proxy) assemble(ctx context.Context) {
	var events *kube.Recorder
	if p.client != nil {
		events = kube.NewRecorder(p.client, p.cfg.HostnameOverride, p.log, time.Now, time.After)
		events.NodeEvent(false, kube.ReasonStarting, "sluice "+buildVersion()+", mode "+p.cfg.Mode)
	}
	p.seen = observe(p.cfg, p.plugins, p.log, events)
	p.from = p.open(p.cfg, p.client, p.log, p.seen.metrics.SetSourceProblems)
	p.seen.follow(p.client, p.from.kube)
	held := &firstHeld{begin: p.beside.Go, do: []func(){gctuner.ReleaseStartup, p.data.retire}}
	if p.kubeProxy {
		held.do = append(held.do, func() { retireLeftovers(ctx, p.log) })
	}
	loaded := make(chan struct{})
	p.loaded = sync.OnceFunc(func() { close(loaded) })
	o := p.options()
	o.Source, o.Observer, o.PluginsReady = p.from, append(p.seen.observers(), held), loaded
	p.engine = engine.New(o)
}

// accompany begins what goes on beside the engine until ctx ends.
func (p *proxy) accompany(ctx context.Context) {
	if events := p.seen.events; events != nil {
		p.beside.Go(func() { events.Run(ctx) })
	}
	p.beside.Go(func() { p.watch(ctx) })
	p.beside.Go(func() { p.followLocalAddrs(ctx) })
	p.beside.Go(func() { keepSmall(ctx, p.cfg.SyncPeriod) })
}
