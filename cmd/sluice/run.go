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
	kubeProxy  bool // remove what it has left
	verbosity  int
}

func newRunCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the proxy on this node",
		Long: `Watches the cluster and keeps the kernel's rules in sync with it. When it stops, the kernel keeps forwarding; 'sluice
cleanup' removes the rules.

The cluster state comes from the API server that --kubeconfig or --server names, in a Pod from that of its own cluster, or
from a directory of manifests, with --source. While the API server is unavailable, the kernel keeps forwarding.`,
		Example: "  sluice run --config /etc/sluice/config.yaml\n  sluice run --kubeconfig /etc/sluice/kubeconfig --server https://192.0.2.1:6443\n  sluice run --source examples/boutique/manifests --node node-a1 --config examples/boutique/sluice.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	f.register(cmd)
	registerSocket(cmd, &f.socket)
	cmd.Flags().StringVar(&f.checkpoint, "checkpoint", agent.DefaultCheckpoint, "file that preserves drains in progress and last good decisions across restarts; empty: none")
	cmd.Flags().BoolVar(&f.once, "once", false, "program the current state and exit")
	cmd.Flags().BoolVar(&f.initOnly, "init-only", false, "load kernel modules and set sysctls, which needs full privileges on the host, and exit; other runs need CAP_NET_ADMIN only")
	cmd.Flags().BoolVar(&f.kubeProxy, "cleanup-kube-proxy", false, "after the first sync, remove what kube-proxy has left in the kernel (nftables, iptables, IPVS)")
	cmd.Flags().IntVarP(&f.verbosity, "v", "v", 0, "log verbosity: debug level if 1 or more (default: logging.verbosity of the configuration)")
	return cmd
}

func (f *runFlags) run(ctx context.Context) error {
	gctuner.SetStartup()
	cfg, err := f.load()
	if err != nil {
		return err
	}
	logs := &agent.Logs{Verbosity: f.verbosity}
	log := newLogger(stderr, cfg, logs)
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
		log.Warn("configuration warning", "reason", w)
	}
	release, err := agent.ClaimNode(ctx, cfg, f.kubeProxy, log)
	if err != nil {
		return err
	}
	defer release()
	signal.Ignore(syscall.SIGHUP) // files are watched, so there is nothing to do
	return agent.New(agent.Options{
		Config: cfg, ConfigFile: f.config, Reload: f.load,
		Client: client, Manifests: f.source,
		Socket: f.socket, Checkpoint: f.checkpoint,
		Once: f.once, RemoveKubeProxy: f.kubeProxy, Version: buildVersion(), PluginCompiler: compileCommand, Log: log, Logs: logs,
	}).Run(ctx)
}
