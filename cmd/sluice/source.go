package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/source/dir"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// sourceFlags say where cluster state comes from: a folder of manifests, or an API server.
type sourceFlags struct {
	source     string
	kubeconfig string
	server     string
}

func (f *sourceFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.source, "source", "", "folder of manifests (YAML and JSON, as kubectl prints them), instead of an API server")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig file of the API server (default: clientConnection.kubeconfig of the configuration, else the Pod's service account)")
	cmd.Flags().StringVar(&f.server, "server", "", "URL of the API server, in the place of the one that the kubeconfig or the Pod has (default: clientConnection.server of the configuration)")
}

// check refuses what contradicts itself.
func (f *sourceFlags) check() error {
	for _, other := range []struct{ name, value string }{{"kubeconfig", f.kubeconfig}, {"server", f.server}} {
		if f.source != "" && other.value != "" {
			return usageError{fmt.Errorf("--source and --%s: give one of them", other.name)}
		}
	}
	if err := config.CheckServer(f.server); err != nil {
		return usageError{fmt.Errorf("--server %w", err)}
	}
	return nil
}

// asks tells whether the command line names a source.
func (f *sourceFlags) asks() bool { return f.source != "" || f.kubeconfig != "" || f.server != "" }

// connect makes the client of the API server; flags win over the configuration.
func (f *sourceFlags) connect(cfg *config.Config) (*kube.Client, error) {
	c := kube.Connection{Kubeconfig: cfg.ClientConnection.Kubeconfig, Server: cfg.ClientConnection.Server, Version: buildVersion()}
	if f.kubeconfig != "" {
		c.Kubeconfig = f.kubeconfig
	}
	if f.server != "" {
		c.Server = f.server
	}
	client, err := kube.Connect(c)
	if errors.Is(err, kube.ErrNoCluster) {
		return nil, usageError{errors.New("where is the cluster's state? Give --source DIR for a folder of manifests, or " +
			"--kubeconfig FILE or --server URL for an API server; in a Pod of the cluster none is needed")}
	}
	return client, err
}

// loadTimeout is how long a command that reads the cluster once waits for it.
const loadTimeout = time.Minute

// read reads the cluster's state once.
func (f *sourceFlags) read(ctx context.Context, cfg *config.Config) (*model.Snapshot, []source.Problem, error) {
	if f.source != "" {
		return dir.Load(f.source)
	}
	client, err := f.connect(cfg)
	if err != nil {
		return nil, nil, err
	}
	kube.RedirectKlog(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	snap, problems, err := kube.Load(ctx, client, cfg.HostnameOverride, len(cfg.Policies) > 0)
	if err != nil {
		return nil, nil, fmt.Errorf("API server %s: %w", client.Server(), err)
	}
	return snap, problems, nil
}
