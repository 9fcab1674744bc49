package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
)

// inputFlags are what a plan is made of, for the commands that plan.
type inputFlags struct {
	sourceFlags
	node   string
	config string
	mode   string
	// serviceFilter limits what is printed of problems to one Service, namespace/name; "": all.
	serviceFilter string
	local         []netip.Addr // addresses of the node besides those of its Node object
}

func (in *inputFlags) register(cmd *cobra.Command) {
	in.sourceFlags.register(cmd)
	cmd.Flags().StringVar(&in.node, "node", "", "name of this node (default: hostnameOverride of the configuration, else the host's name)")
	cmd.Flags().StringVar(&in.config, "config", "", "configuration file (SluiceConfiguration)")
	cmd.Flags().StringVar(&in.mode, "mode", "", "data plane: nftables or ipvs (default: mode of the configuration)")
}

// load reads the configuration and lays the flags over it.
func (in *inputFlags) load() (*config.Config, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	cfg := config.Default()
	if in.config != "" {
		var err error
		if cfg, err = config.Load(in.config); err != nil {
			return nil, err
		}
	}
	if in.mode != "" {
		cfg.Mode = in.mode
	}
	if err := config.CheckMode(cfg.Mode); err != nil {
		return nil, usageError{fmt.Errorf("--mode %w", err)}
	}
	if in.node != "" {
		cfg.HostnameOverride = in.node
	}
	if cfg.HostnameOverride == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("the name of this node (give --node): %w", err)
		}
		cfg.HostnameOverride = strings.ToLower(strings.TrimSpace(host))
	}
	return cfg, nil
}

// caps are those of the data plane that the plan is for, without opening it.
func (in *inputFlags) caps() (plan.Caps, error) {
	cfg, err := in.load()
	if err != nil {
		return plan.Caps{}, err
	}
	return dataplane.All().Get(cfg.Mode).Caps(), nil
}

// planner plans the cluster once, as it is now. Problems of objects go to standard error; they do not stop it.
func (in *inputFlags) planner(ctx context.Context) (_ *planner.Planner, closePlugins func(), err error) {
	cfg, err := in.load()
	if err != nil {
		return nil, nil, err
	}
	cluster, problems, err := in.read(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if hint := in.hint(cfg, cluster); hint != "" {
		fmt.Fprintf(os.Stderr, "sluice: warning: %s\n", hint)
	}
	for _, p := range problems {
		fmt.Fprintf(os.Stderr, "sluice: %v\n", p)
	}
	set, err := plugins.Open(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	if _, err := set.Load(ctx, cfg); err != nil {
		fmt.Fprintf(os.Stderr, "sluice: %v\n", err)
	}
	pl := agent.NewPlanner(cfg, in.local, set)
	pl.Replace(cluster)
	step := pl.Plan(time.Now())
	if in.serviceFilter != "" {
		step.Errors = slices.DeleteFunc(step.Errors, func(err error) bool { return !strings.Contains(err.Error(), in.serviceFilter) })
		step.Warnings = slices.DeleteFunc(step.Warnings, func(w string) bool { return !strings.Contains(w, in.serviceFilter) })
	}
	const few = 5
	for i, err := range step.Errors {
		if i == few {
			fmt.Fprintf(os.Stderr, "sluice: and %d more Services whose policy failed\n", len(step.Errors)-i)
			break
		}
		fmt.Fprintf(os.Stderr, "sluice: %v\n", err)
	}
	for _, w := range step.Warnings {
		fmt.Fprintf(os.Stderr, "sluice: warning: %s\n", w)
	}
	return pl, func() { set.Close(ctx) }, nil
}

// hint is for who asks an API server from a host that is no node of the cluster.
func (in *inputFlags) hint(cfg *config.Config, cluster *model.Snapshot) string {
	if in.source != "" || in.node != "" || cluster.Nodes[cfg.HostnameOverride] != nil {
		return ""
	}
	return fmt.Sprintf("Node %s: not in the cluster: --node says for which Node, where this host is none of them", cfg.HostnameOverride)
}
