package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/config/migrate"
)

// completionTimeout bounds asking the running sluice while a user waits for the shell.
const completionTimeout = 2 * time.Second

// addCompletions completes the values of flags and arguments of all commands: those of a fixed list, the names of settings in a
// plugin's manifest, and the names of namespaces and Services as the sluice that runs on this node has them.
func addCompletions(cmd *cobra.Command) {
	outputs := []string{"text", "json", "yaml"}
	if cmd.Name() == "explain" {
		outputs = append(outputs, "wide")
	}
	for name, values := range map[string][]string{
		"mode": {config.ModeNFTables, config.ModeIPVS}, "output": outputs, "fail-on": {onFailing, onDegraded}, "for": {migrate.ForHost, migrate.ForDaemonSet},
	} {
		if cmd.Flag(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return values, cobra.ShellCompDirectiveNoFileComp
			}) // an error means that there is one already
		}
	}
	for _, name := range []string{"config", "against", "kubeconfig", "source", "timeline", "html", "socket", "record"} {
		if cmd.Flag(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
				return nil, cobra.ShellCompDirectiveDefault // files
			})
		}
	}
	if cmd.Flag("settings") != nil {
		_ = cmd.RegisterFlagCompletionFunc("settings", completeSettings)
	}
	if cmd.Flag("namespace") != nil {
		_ = cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			var out []string
			for _, s := range runningServices(cmd, "") {
				out = append(out, s.Namespace)
			}
			return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp
		})
	}
	if name := cmd.Name(); name == "explain" || name == "plan" || name == "simulate" {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, s := range runningServices(cmd, cmd.Flag("namespace").Value.String()) {
				out = append(out, s.Name)
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, sub := range cmd.Commands() {
		addCompletions(sub)
	}
}

// runningServices returns the Services of the sluice that runs on this node; none if it does not answer.
func runningServices(cmd *cobra.Command, namespace string) []api.ServiceOverview {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	socket := api.DefaultSocket
	if f := cmd.Flag("socket"); f != nil {
		socket = f.Value.String()
	}
	list, err := stateclient.OnSocket(socket).Services(ctx, namespace)
	if err != nil {
		return nil
	}
	return list.Services
}
