package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/gctuner"
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
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.register(cmd)
	registerSocket(cmd, &f.socket)
	cmd.Flags().StringVar(&f.checkpoint, "checkpoint", agent.DefaultCheckpoint, "file that keeps drains under way and last good decisions over a restart; empty: none")
	cmd.Flags().BoolVar(&f.once, "once", false, "program the present state and exit")
	cmd.Flags().BoolVar(&f.initOnly, "init-only", false, "set what needs full rights on the host (the settings of the connection table) and exit; later runs need CAP_NET_ADMIN only")
	cmd.Flags().BoolVar(&f.kubeProxy, "cleanup-kube-proxy", false, "remove what kube-proxy has left in the kernel (nftables, iptables, IPVS), once sluice forwards")
	cmd.Flags().IntVarP(&f.verbosity, "v", "v", 0, "log verbosity: 1 and more logs at debug level (default: logging.verbosity of the configuration)")
	return cmd
}

func (f *runFlags) run(ctx context.Context) error {
	gctuner.SetStartup()
	cfg, err := f.load()
	if err != nil {
		return err
	}
	log := newLogger(cfg, f.verbosity)
	if f.initOnly {
		return agent.InitHost(cfg, log)
	}
	kube.RedirectKlog(log)
	var client *kube.Client
	if f.source == "" {
		if client, err = f.connect(cfg); err != nil {
			return err
		}
	}
	for _, w := range cfg.Warnings() {
		log.Warn("configuration", "warning", w)
	}
	release, err := agent.ClaimNode(ctx, cfg, f.kubeProxy, log)
	if err != nil {
		return err
	}
	defer release()
	signal.Ignore(syscall.SIGHUP) // files are watched: there is nothing to reload, and nothing to end for
	return agent.New(agent.Options{
		Config: cfg, ConfigFile: f.config, Reload: f.load,
		Client: client, Manifests: f.source,
		Socket: f.socket, Checkpoint: f.checkpoint,
		Once: f.once, RemoveKubeProxy: f.kubeProxy, Version: buildVersion(), Log: log,
	}).Run(ctx)
}
