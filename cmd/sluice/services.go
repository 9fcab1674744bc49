package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// listServices prints the Services of a namespace, or of all if it is "", in one line each.
func (in *inputFlags) listServices(cmd *cobra.Command, socket, namespace, output string) error {
	if err := checkOutput(output, "text", "wide", "json", "yaml"); err != nil {
		return err
	}
	list, err := in.services(cmd.Context(), socket, namespace)
	if err != nil {
		return err
	}
	if output == "json" || output == "yaml" {
		return printer.Object(cmd.OutOrStdout(), output, list)
	}
	return printer.Services(cmd.OutOrStdout(), list, namespace, output == "wide")
}

// services asks the running sluice for its Services, or plans the cluster state of the flags.
func (in *inputFlags) services(ctx context.Context, socket, namespace string) (*api.Services, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if !in.hasSource() {
		return stateclient.OnSocket(socket).Services(ctx, namespace)
	}
	pl, closePlugins, err := in.planOnce(ctx)
	if err != nil {
		return nil, err
	}
	defer closePlugins()
	cfg, err := in.load()
	if err != nil {
		return nil, err
	}
	return state.NewServices(pl, cfg.HostnameOverride, namespace), nil
}
