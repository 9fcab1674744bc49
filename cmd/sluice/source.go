package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/source/dir"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// sourceFlags select the source of cluster state: a directory of manifests, or an API server.
type sourceFlags struct {
	source     string
	kubeconfig string
	context    string
	server     string
	user       bool // the command is a user's, with KUBECONFIG and ~/.kube/config
}

func (f *sourceFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.source, "source", "", "directory of manifests, or a file except with run (YAML or JSON, as printed by kubectl), to read instead of an API server")
	kubeconfig := "kubeconfig file for the API server (default: clientConnection.kubeconfig of the configuration, else "
	if f.user = cmd.Name() != "run"; f.user {
		kubeconfig += "$KUBECONFIG, the Pod's service account, or ~/.kube/config)"
		cmd.Flags().StringVar(&f.context, "context", "", "context of the kubeconfig to read the API server with (default: its current one)")
	} else {
		kubeconfig += "the Pod's service account)"
	}
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", kubeconfig)
	cmd.Flags().StringVar(&f.server, "server", "", "URL of the API server; overrides that of the kubeconfig or the Pod (default: clientConnection.server of the configuration)")
}

// check rejects contradictory flags.
func (f *sourceFlags) check() error {
	for _, other := range []struct{ name, value string }{{"kubeconfig", f.kubeconfig}, {"context", f.context}, {"server", f.server}} {
		if f.source != "" && other.value != "" {
			return usageError{fmt.Errorf("--source and --%s are mutually exclusive", other.name)}
		}
	}
	if err := config.CheckServer(f.server); err != nil {
		return usageError{fmt.Errorf("--server %w", err)}
	}
	return nil
}

// hasSource reports whether the command line selects a source.
func (f *sourceFlags) hasSource() bool {
	return f.source != "" || f.kubeconfig != "" || f.context != "" || f.server != ""
}

// connect returns a client for the API server. Flags take precedence over the configuration.
func (f *sourceFlags) connect(cfg *config.Config) (*kube.Client, error) {
	c := kube.Connection{Kubeconfig: cfg.ClientConnection.Kubeconfig, Server: cfg.ClientConnection.Server, Version: buildVersion()}
	if f.kubeconfig != "" {
		c.Kubeconfig = f.kubeconfig
	}
	if f.server != "" {
		c.Server = f.server
	}
	if c.Kubeconfig == "" && c.Server == "" && f.user { // credentials are for the server of their kubeconfig
		var err error
		if c.Kubeconfig, err = userKubeconfig(); err != nil {
			return nil, err
		}
	}
	if c.Context = f.context; c.Context != "" && c.Kubeconfig == "" {
		return nil, usageError{errors.New("--context: there is no kubeconfig: set --kubeconfig FILE")}
	}
	client, err := kube.Connect(c)
	if errors.Is(err, kube.ErrNoCluster) {
		return nil, usageError{errors.New("no source of cluster state: set --kubeconfig FILE or --server URL for an API server, or --source PATH " +
			"for manifests; a Pod of the cluster needs none")}
	}
	return client, err
}

// userKubeconfig returns the kubeconfig that kubectl would read; "": none, or that of the Pod.
func userKubeconfig() (string, error) {
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 1 {
		return "", usageError{fmt.Errorf("KUBECONFIG has %d files; set --kubeconfig to one of them", len(list))}
	} else if len(list) == 1 {
		return list[0], nil
	}
	home, err := os.UserHomeDir()
	if err != nil || kube.InCluster() {
		return "", nil //nolint:nilerr // without a home folder there is none
	}
	file := filepath.Join(home, ".kube", "config")
	if _, err := os.Stat(file); err != nil {
		return "", nil //nolint:nilerr // likewise
	}
	return file, nil
}

// withObjects returns a configuration with the policies and plugins of sluice.dev. What is wrong with them is printed to standard
// error.
func (f *sourceFlags) withObjects(ctx context.Context, cfg *config.Config) (*config.Config, error) {
	out, wrong, err := f.checkObjects(ctx, cfg)
	for _, err := range wrong {
		printError(err)
	}
	return out, err
}

// checkObjects returns a configuration with the policies and plugins of sluice.dev, and what is wrong with them.
func (f *sourceFlags) checkObjects(ctx context.Context, cfg *config.Config) (_ *config.Config, wrong []error, _ error) {
	var read map[model.ObjectName]any
	if f.source != "" {
		snap, _, err := dir.Load(f.source)
		if err != nil {
			return nil, nil, err
		}
		read = snap.Objects
	} else {
		client, err := f.connect(cfg)
		if err != nil {
			return nil, nil, err
		}
		kube.RedirectKlog(warningsLogger())
		ctx, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		var problems []source.Problem
		if read, problems, err = kube.LoadObjects(ctx, client); err != nil {
			return nil, nil, fmt.Errorf("API server %s: %w", client.Server(), err)
		}
		for _, p := range problems {
			warn(p.Error())
		}
	}
	out, problems := new(config.Objects).WithObjects(cfg, read)
	for _, p := range problems {
		wrong = append(wrong, p)
	}
	return out, wrong, nil
}

// loadTimeout bounds reading the cluster state once.
const loadTimeout = time.Minute

// read reads the cluster state once, with what Services need of an API server.
func (f *sourceFlags) read(ctx context.Context, cfg *config.Config, needs kube.NeedsOn) (*model.Snapshot, []source.Problem, error) {
	if f.source != "" {
		return dir.Load(f.source)
	}
	client, err := f.connect(cfg)
	if err != nil {
		return nil, nil, err
	}
	kube.RedirectKlog(warningsLogger())
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	snap, problems, err := kube.Load(ctx, client, cfg.HostnameOverride, needs)
	if err != nil {
		return nil, nil, fmt.Errorf("API server %s: %w", client.Server(), err)
	}
	return snap, problems, nil
}
