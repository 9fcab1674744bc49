package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/conntrack"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/footprint"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

type runFlags struct {
	inputFlags
	socket     string
	checkpoint string
	once       bool
	initOnly   bool
	kubeProxy  bool // remove its leftovers
	verbosity  int
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the proxy on this node",
		Long: `Watches the cluster's state, and keeps the kernel at the plan that follows from it. Stopping leaves the data plane
as it is, forwarding; 'sluice cleanup' removes it.

The state comes from the API server that --kubeconfig or --server names, in a Pod from its own cluster's; or from a
folder of manifests, with --source. An API server that is away stops nothing: what is programmed forwards on.`,
		Example: "  sluice run --config /etc/sluice/config.yaml\n  sluice run --kubeconfig /etc/sluice/kubeconfig --server https://192.0.2.1:6443\n  sluice run --source examples/boutique/manifests --node node-a1 --config examples/boutique/sluice.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.initOnly {
				return f.initialize()
			}
			return f.run(cmd.Context())
		},
	}
	f.register(cmd)
	registerSocket(cmd, &f.socket)
	cmd.Flags().StringVar(&f.checkpoint, "checkpoint", defaultCheckpoint, "file that keeps drains under way and last good decisions over a restart; empty: none")
	cmd.Flags().BoolVar(&f.once, "once", false, "program the present state and exit")
	cmd.Flags().BoolVar(&f.initOnly, "init-only", false, "set what needs full rights on the host (the settings of the connection table) and exit; later runs need CAP_NET_ADMIN only")
	cmd.Flags().BoolVar(&f.kubeProxy, "cleanup-kube-proxy", false, "remove what kube-proxy has left in the kernel (nftables, iptables, IPVS), once sluice forwards")
	cmd.Flags().IntVarP(&f.verbosity, "v", "v", 0, "log verbosity: 1 and more logs at debug level (default: logging.verbosity of the configuration)")
	return cmd
}

func (f *runFlags) run(ctx context.Context) (err error) {
	footprint.Start()
	cfg, err := f.load()
	if err != nil {
		return err
	}
	log := newLogger(cfg, f.verbosity)
	kube.RouteLogs(log)
	var client *kube.Client
	if f.source == "" {
		if client, err = f.connect(cfg); err != nil {
			return err
		}
	}
	for _, w := range cfg.Warnings() {
		log.Warn("configuration", "warning", w)
	}
	unlock, err := lockWriter(log)
	if err != nil {
		return err
	}
	defer unlock()
	if err := refuseKubeProxy(ctx, "sluice does not run beside it"); err != nil {
		return err
	}
	if !f.kubeProxy {
		tellLeftovers(ctx, log)
	}
	prepare(cfg, log)
	local, err := localAddrs(cfg.IPVS.Interface)
	if err != nil {
		return err
	}
	backend, err := openBackend(cfg, log)
	if err != nil {
		return err
	}
	inUse := &dataPlane{backend: backend, cfg: cfg, log: log}
	defer func() { err = errors.Join(err, inUse.close()) }()
	plugins, closePlugins, err := openPlugins(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer closePlugins()
	if f.once { // otherwise they are loaded beside the engine: no Service waits for another one's plugin
		if _, err := plugins.load(ctx, cfg); err != nil {
			log.Error("not every plugin could be loaded; their Services get the default rules", "err", err)
		}
	}
	signal.Ignore(syscall.SIGHUP) // files are watched: there is nothing to reload, and nothing to end for
	options := engine.Options{
		Backend:   backend,
		Planner:   plan.NewPlanner(settings(cfg, local), plugins.get),
		ConnTable: conntrack.Table{},
		Log:       log,
		MinSync:   cfg.MinSyncPeriod, SyncPeriod: cfg.SyncPeriod,
		Once: f.once,
	}
	if f.checkpoint != "" {
		options.Checkpoint = checkpointFile(f.checkpoint)
	}
	if f.once {
		options.Source = f.open(cfg, client, log, nil)
		err := engine.New(options).Run(ctx)
		if err == nil && ctx.Err() == nil && cfg.Mode != config.ModeIPVS {
			if _, rerr := ipvs.Retire(ctx, ipvsOptions(cfg, log), false); !errors.Is(rerr, ipvs.ErrNoIPVS) {
				err = rerr
			}
		}
		if err == nil && ctx.Err() == nil && f.kubeProxy {
			err = removeLeftovers(ctx, log)
		}
		return err
	}
	var events *kube.Recorder
	if client != nil {
		events = kube.NewRecorder(client, cfg.HostnameOverride, log, time.Now, time.After)
		events.OnNode(false, kube.Starting, "sluice "+buildVersion()+", mode "+cfg.Mode)
	}
	seen := observe(cfg, plugins, log, events)
	from := f.open(cfg, client, log, seen.metrics.SourceProblems)
	options.Source = from
	observer, stopSmall := keepSmall(ctx, seen.observer(), cfg.SyncPeriod)
	defer stopSmall()
	options.Observer = observer
	retire := &firstHeld{Observer: options.Observer, do: inUse.retire}
	defer retire.wait.Wait()
	options.Observer = retire
	if f.kubeProxy {
		first := &firstHeld{Observer: options.Observer, do: func() {
			if err := removeLeftovers(ctx, log); err != nil {
				log.Error("not all of what kube-proxy has left could be removed", "err", err)
			}
		}}
		defer first.wait.Wait()
		options.Observer = first
	}
	loaded := make(chan struct{})
	options.Ready = loaded
	pluginsLoaded := sync.OnceFunc(func() { close(loaded) })
	e := engine.New(options)
	stopSocket, err := serveState(f.socket, e, log)
	if err != nil {
		return err
	}
	defer stopSocket()
	ctx, cancel := context.WithCancel(ctx)
	fatal := make(chan error, 1)
	defer seen.serve(ctx, func(err error) {
		select {
		case fatal <- err:
		default:
		}
		cancel()
	})()
	if events != nil {
		go events.Run(ctx)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		f.watchConfig(ctx, cfg, inUse, plugins, e, log, func(cfg *config.Config) {
			seen.config.Store(cfg)
			pluginsLoaded()
			if from.nodes != nil {
				from.nodes(needsNodes(cfg))
			}
		})
	}()
	go followLocalAddrs(ctx, func() string { return seen.config.Load().IPVS.Interface }, cfg.SyncPeriod, local, e, log)
	defer func() { cancel(); <-watched }()
	log.Info("sluice runs", "version", buildVersion(), "node", cfg.HostnameOverride, "source", from.name, "mode", cfg.Mode)
	err = e.Run(ctx)
	log.Info("sluice ends; the data plane forwards on")
	select {
	case hard := <-fatal: // bindAddressHardFail
		return errors.Join(hard, err)
	default:
		return err
	}
}

// watchConfig loads the plugins, then follows the configuration file and the plugins' files, and reloads what changes.
// What cannot be loaded is logged, and what was there before stays in force.
func (f *runFlags) watchConfig(ctx context.Context, cfg *config.Config, inUse *dataPlane, plugins *pluginSet, e *engine.Engine, log *slog.Logger, inForce func(*config.Config)) {
	files := func() []string {
		out := []string{}
		if f.config != "" {
			out = append(out, f.config)
		}
		for _, p := range cfg.Plugins {
			out = append(out, p.File)
		}
		return out
	}
	said := ""
	err := watchFiles(ctx, files, func() {
		next, err := f.load()
		if err == nil {
			err = next.Replaces(cfg)
		}
		if err != nil {
			next = cfg
			if err.Error() != said {
				log.Error("the configuration cannot be taken in; the one before stays in force", "err", err)
			}
			said = err.Error()
		} else {
			said = ""
		}
		swapped, err := plugins.load(ctx, next)
		if err != nil && ctx.Err() == nil {
			log.Error("not every plugin could be loaded", "err", err)
		}
		if !next.SameDataPlane(cfg) {
			if err := inUse.change(ctx, e, next); err != nil && ctx.Err() == nil {
				log.Error("the data plane stays as it is", "mode", cfg.Mode, "wanted", next.Mode, "err", err)
				kept := *next
				kept.Mode, kept.IPVS = cfg.Mode, cfg.IPVS
				next = &kept
			}
		}
		changed := !next.Equal(cfg)
		cfg = next
		inForce(cfg)
		if !swapped && !changed {
			return
		}
		local, err := localAddrs(cfg.IPVS.Interface)
		if err != nil {
			log.Error("reading this host's addresses; the configuration is not taken in", "err", err)
			return
		}
		if err := e.Do(ctx, func(p *plan.Planner) {
			if changed {
				p.Configure(settings(cfg, local))
			}
			p.Reloaded()
		}); err != nil && ctx.Err() == nil {
			log.Error("taking the new configuration in", "err", err)
		}
		plugins.closeRetired() // the engine has been told: it asks the new ones
	})
	if err != nil && ctx.Err() == nil {
		log.Error("configuration and plugins are not watched: changes need a restart", "err", fmt.Errorf("watch: %w", err))
	}
}
