package main

import (
	"context"
	"errors"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/gctuner"
)

type runFlags struct {
	inputFlags
	socket     string
	checkpoint string
	once       bool
	initOnly   bool
	hostRoot   string
	kubeProxy  bool // remove what it has left
	verbosity  int
	record     agent.RecordOptions
	recordMiB  int64
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
	cmd.Flags().StringVar(&f.record.File, "record", "", "file to record to what this node sees, for 'sluice replay': changes of the cluster and outcomes of connections, with times")
	flagrange.Int64(cmd.Flags(), &f.recordMiB, "record-size", 64, 1, 1<<20, "size in MiB from which another file is begun; the one before is renamed to FILE.1, and so on")
	flagrange.Int(cmd.Flags(), &f.record.Files, "record-files", "", 4, 1, 1000, "how many files are kept, with the current one")
	cmd.Flags().BoolVar(&f.once, "once", false, "program the current state and exit")
	cmd.Flags().BoolVar(&f.initOnly, "init-only", false, "load kernel modules and set sysctls, which needs full privileges on the host, and exit; other runs need CAP_NET_ADMIN only")
	cmd.Flags().StringVar(&f.hostRoot, "host-root", "", "with --init-only: the host's root directory, in a container; kernel modules are loaded with the host's modprobe")
	cmd.Flags().BoolVar(&f.kubeProxy, "cleanup-kube-proxy", false, "after the first sync, remove what kube-proxy has left in the kernel (nftables, iptables, IPVS)")
	flagrange.Int(cmd.Flags(), &f.verbosity, "v", "v", 0, 0, 1000, "log verbosity: debug level if 1 or more (default: logging.verbosity of the configuration)")
	return cmd
}

func (f *runFlags) run(ctx context.Context) error {
	if err := f.checkRecord(); err != nil {
		return err
	}
	gctuner.SetStartup()
	cfg, err := f.load()
	if err != nil {
		return err
	}
	logs := &agent.Logs{Verbosity: f.verbosity}
	log := newLogger(stderr, cfg, logs)
	if f.hostRoot != "" && !f.initOnly {
		return errors.New("--host-root: only with --init-only")
	}
	if f.initOnly {
		return agent.InitHost(cfg, f.hostRoot, log)
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
	if err := agent.ClaimNode(ctx, cfg, f.kubeProxy, log); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGHUP) // files are watched, so there is nothing to do
	return agent.New(agent.Options{
		Config: cfg, ConfigFile: f.config, Reload: f.load,
		Client: client, Manifests: f.source,
		Socket: f.socket, Checkpoint: f.checkpoint,
		Record: f.record,
		Once:   f.once, RemoveKubeProxy: f.kubeProxy, ExtendStop: extendStop, Version: buildVersion(), PluginCompiler: compileCommand, PluginProcess: processCommand, Precompiled: precompiledPlugins(), Log: log, Logs: logs,
	}).Run(ctx)
}

// checkRecord checks the flags of a recording.
func (f *runFlags) checkRecord() error {
	f.record.MaxBytes = f.recordMiB << 20
	if f.record.File != "" && f.once {
		return usageError{errors.New("--record and --once: there is nothing to record")}
	}
	return nil
}
