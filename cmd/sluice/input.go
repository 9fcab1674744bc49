package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/wasm"
)

// inputFlags are what a plan is made of, for the commands that plan.
type inputFlags struct {
	sourceFlags
	node   string
	config string
	mode   string
	about  string       // tell only what concerns this Service, namespace/name; "" for everything
	local  []netip.Addr // addresses of the node besides those of its Node object
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
	if cfg.Mode != config.ModeNFTables && cfg.Mode != config.ModeIPVS {
		return nil, usageError{fmt.Errorf("--mode %q: must be %s or %s", cfg.Mode, config.ModeNFTables, config.ModeIPVS)}
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

// settings are a configuration's part of the plan.
func settings(cfg *config.Config, local []netip.Addr) planner.Settings {
	return planner.Settings{
		Node:             cfg.HostnameOverride,
		MasqueradeAll:    cfg.MasqueradeAll,
		MasqueradeMark:   cfg.MasqueradeMark(),
		PodSources:       cfg.PodSources(),
		PodInterfaces:    cfg.PodInterfaces(),
		PodsOfNode:       cfg.DetectLocalMode == config.NodeCIDR,
		Primary:          cfg.BindAddress,
		NodePortPrefixes: cfg.NodePortPrefixes(),
		LocalAddrs:       local,
		Policies:         cfg.PolicySet(),
	}
}

// caps are those of the data plane that the plan is for, without opening it.
func (in *inputFlags) caps() (plan.Caps, error) {
	cfg, err := in.load()
	if err != nil {
		return plan.Caps{}, err
	}
	return capsOf(cfg.Mode), nil
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
	plugins, closePlugins, err := openPlugins(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return nil, nil, err
	}
	if _, err := plugins.load(ctx, cfg); err != nil {
		fmt.Fprintf(os.Stderr, "sluice: %v\n", err)
	}
	pl := planner.New(settings(cfg, in.local), plugins.get)
	pl.Replace(cluster)
	step := pl.Plan(time.Now())
	if in.about != "" {
		step.Errors = slices.DeleteFunc(step.Errors, func(err error) bool { return !strings.Contains(err.Error(), in.about) })
		step.Warnings = slices.DeleteFunc(step.Warnings, func(w string) bool { return !strings.Contains(w, in.about) })
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
	return pl, closePlugins, nil
}

// hint is for who asks an API server from a host that is no node of the cluster.
func (in *inputFlags) hint(cfg *config.Config, cluster *model.Snapshot) string {
	if in.source != "" || in.node != "" || cluster.Nodes[cfg.HostnameOverride] != nil {
		return ""
	}
	return fmt.Sprintf("Node %s: not in the cluster: --node says for which Node, where this host is none of them", cfg.HostnameOverride)
}

// openPlugins starts the plugin host of a configuration, with nothing loaded yet.
func openPlugins(ctx context.Context, cfg *config.Config, log *slog.Logger) (*pluginSet, func(), error) {
	cache := cfg.PluginCacheDir
	if own, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(own, "sluice", "plugins")
	}
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Log: log, Now: time.Now})
	if err != nil {
		return nil, nil, err
	}
	set := newPluginSet(host, log)
	return set, func() {
		set.close()
		if err := host.Close(ctx); err != nil {
			log.Warn("closing the plugin host", "err", err)
		}
	}, nil
}
