package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent"
	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/printable"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

func newConfigCommand() *cobra.Command {
	var source, node string
	check := newConfigCheckCommand(&source, &node)
	check.Flags().StringVar(&source, "source", "", "directory of manifests: check the settings of their Services too")
	check.Flags().StringVar(&node, "node", "", "name of a Node: print which bindings for some of the nodes apply on it; its labels are read from --source")
	return newGroup("config", "Write, check and migrate configuration files",
		&cobra.Command{
			Use:   "defaults",
			Short: "Print a configuration file with all fields, their defaults and meaning",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := io.WriteString(cmd.OutOrStdout(), config.DefaultsYAML())
				return err
			},
		},
		check,
		newConfigMigrateCommand())
}

func newConfigCheckCommand(source, node *string) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Report all errors of a configuration file",
		Long: `Reads a configuration file, or standard input if FILE is -, as 'sluice run' does, and loads its plugins with their settings. Reports every error with
the path of its field, and warns of values that are valid but probably not intended. Plugins in registries are pulled into
the cache; for an image with a tag in place of a digest, the digest that the tag has now is printed. The exit code is 1 if
'sluice run' would reject the file or one of its plugins. With --source, it also reports which Services of a directory of manifests
set settings (annotation sluice.dev/settings) that would be refused, and what is wrong with the manifests. With --node, it
prints which bindings for some of the nodes (bindings[].nodes) apply on a node.`,
		Args: oneArg("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := loadConfig(cmd.InOrStdin(), args[0])
			if err != nil {
				warnOfTags(cmd.Context(), args[0], err)
				return err
			}
			for _, w := range append(cfg.Warnings(), cfg.MissingFiles()...) {
				warn(args[0] + ": " + w)
			}
			set, err := plugins.Open(cmd.Context(), cfg, compileCommand, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			defer set.Close(cmd.Context())
			if _, err := set.Load(cmd.Context(), cfg, nil); err != nil {
				return config.PrefixErrors("configuration "+args[0], err)
			}
			for _, w := range set.UnknownServiceSettings(cmd.Context(), cfg) {
				warn(args[0] + ": " + w)
			}
			cluster := model.NewSnapshot()
			if *source != "" {
				if cluster, err = checkServices(cfg, set, *source); err != nil {
					return err
				}
			}
			if *node != "" {
				printNodeBindings(cmd.OutOrStdout(), cfg, *node, cluster)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: valid\n", printable.Escape(args[0]))
			return err
		},
	}
}

// loadConfig loads a configuration file, or standard input if the name is -, whose relative paths are those of the working directory.
func loadConfig(stdin io.Reader, name string) (*config.Config, error) {
	if name != "-" {
		return config.Load(name)
	}
	text, err := readInput(stdin, name)
	if err != nil {
		return nil, fmt.Errorf("configuration: standard input: %w", err)
	}
	cfg, err := config.Parse(text, ".")
	if err != nil {
		return nil, config.PrefixErrors("configuration: standard input", err)
	}
	return cfg, nil
}

// checkServices returns the errors of the settings of all Services of a directory of manifests, and of the manifests: what
// cannot be read is not checked.
func checkServices(cfg *config.Config, set *plugins.Set, source string) (*model.Snapshot, error) {
	cluster, problems, err := dir.Load(source)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range problems {
		if p.Warning {
			warn(p.Error())
		} else {
			errs = append(errs, p)
		}
	}
	pl := agent.NewPlanner(cfg, nil, set)
	pl.Replace(cluster)
	result := pl.Plan(time.Now())
	for _, err := range result.ChoiceErrors {
		warn(err.Error())
	}
	for _, err := range result.SettingsErrors {
		errs = append(errs, err)
	}
	return cluster, errors.Join(errs...)
}

// printNodeBindings prints which bindings for some of the nodes apply on a node.
func printNodeBindings(w io.Writer, cfg *config.Config, node string, cluster *model.Snapshot) {
	policies := cfg.PolicySet()
	policies.SetNode(planner.PolicyNode(node, cluster.Nodes[node]))
	all := policies.NodeBindings(nil)
	for i := range all {
		fmt.Fprintln(w, printable.Escape(all[i].String()))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "all bindings apply on every node")
	}
}

// maxInput is the maximum size of a KubeProxyConfiguration in bytes; a ConfigMap has at most 1 MiB.
const maxInput = 8 << 20

// readInput reads a file, which may be a pipe, or standard input if the name is -.
func readInput(stdin io.Reader, name string) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxInput+1))
	if err == nil && len(text) > maxInput {
		err = fmt.Errorf("%s: larger than %d MiB", name, maxInput>>20)
	}
	return text, err
}
