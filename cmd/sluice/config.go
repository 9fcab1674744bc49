package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/dir"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

func newConfigCommand() *cobra.Command {
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
		newConfigCheckCommand(),
		newConfigMigrateCommand())
}

func newConfigCheckCommand() *cobra.Command {
	var source, node string
	var inPod bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Report all errors of a configuration file",
		Long: `Reads a configuration file, or standard input if FILE is -, as 'sluice run' does, and loads its plugins with their settings. Reports every error with
its line and the path of its field, and warns of values that are valid but probably not intended. Plugins in registries are pulled into
the cache; for an image with a tag in place of a digest, the digest that the tag has now is printed. The exit code is 1 if
'sluice run' would reject the file or one of its plugins. With --source, it also reports which Services of a directory of manifests
set settings (annotation sluice.dev/settings) that would be refused, which bindings select none of them, and what is wrong with the manifests. With --node, it
prints which bindings for some of the nodes (bindings[].nodes) apply on a node. With --in-pod, paths and addresses are those of a Pod of the
DaemonSet in deploy/kustomize: it reports files that are not mounted there and probes that nothing answers, and plugins are not loaded.`,
		Args: oneArg("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, dir, err := readConfig(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			if inPod {
				dir = config.InPodDir
			}
			cfg, err := config.Parse(text, dir)
			if err != nil {
				err = config.PrefixErrors("configuration "+configName(args[0]), err)
				warnOfTags(cmd.Context(), args[0], err)
				return err
			}
			findings := cfg.Warnings()
			if inPod {
				problems, warnings := cfg.InPod()
				if len(problems) > 0 {
					return config.PrefixErrors("configuration "+configName(args[0]), config.AddLines(text, problems))
				}
				findings = append(findings, warnings...)
				cfg.Plugins = nil // their files and limits are those of the Pod
				for i := range cfg.Policies {
					cfg.Policies[i].Plugins, cfg.Policies[i].Shadow = nil, nil
				}
			} else {
				findings = append(findings, cfg.MissingFiles()...)
			}
			report := func(findings []string) {
				if err := config.AddLines(text, findings); err != nil {
					for w := range strings.SplitSeq(err.Error(), "\n") {
						warn(args[0] + ": " + w)
					}
				}
			}
			report(findings)
			if source != "" {
				var wrong []error
				cfg, wrong, err = (&sourceFlags{source: source}).checkObjects(cmd.Context(), cfg)
				if err := errors.Join(append(wrong, err)...); err != nil {
					return err
				}
			}
			set, err := plugins.Open(cmd.Context(), cfg, plugins.Options{Compiler: compileCommand, Process: processCommand, Precompiled: precompiledPlugins(), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				return err
			}
			defer set.Close(cmd.Context())
			if _, err := set.Load(cmd.Context(), cfg, nil); err != nil {
				return config.PrefixErrors("configuration "+configName(args[0]), config.AddLines(text, plugins.Messages(err)))
			}
			if problems := set.WrongOrders(cfg); len(problems) > 0 {
				return config.PrefixErrors("configuration "+configName(args[0]), config.AddLines(text, problems))
			}
			for _, w := range set.UnknownServiceSettings(cmd.Context(), cfg) {
				warn(args[0] + ": " + w)
			}
			cluster := model.NewSnapshot()
			if source != "" {
				if cluster, err = checkServices(cfg, set, source); err != nil {
					return err
				}
				report(cfg.UnusedBindings(cluster.Services))
			}
			report(printBindingNodes(cmd.OutOrStdout(), cfg, cluster))
			if node != "" {
				printNodeBindings(cmd.OutOrStdout(), cfg, node, cluster)
			}
			for _, text := range presets(cfg) {
				fmt.Fprintln(cmd.OutOrStdout(), text)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: valid\n", printable.Escape(args[0]))
			return err
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "directory of manifests: check the settings of their Services too")
	cmd.Flags().StringVar(&node, "node", "", "name of a Node: print which bindings for some of the nodes apply on it; its labels are read from --source")
	cmd.Flags().BoolVar(&inPod, "in-pod", false, "check paths and addresses as they are in a Pod of the DaemonSet; plugins are not loaded")
	return cmd
}

// readConfig reads a configuration file, or standard input if the name is -. Its relative paths are those of folder.
func readConfig(stdin io.Reader, name string) (text []byte, folder string, err error) {
	if name != "-" {
		text, err = config.Read(name)
		return text, filepath.Dir(name), err
	}
	if text, err = readInput(stdin, name); err != nil {
		err = fmt.Errorf("configuration: standard input: %w", err)
	}
	return text, ".", err
}

// configName is the name of a configuration file in messages.
func configName(name string) string {
	if name == "-" {
		return "of standard input"
	}
	return name
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
	result := pl.PlanNow(time.Now())
	for _, err := range result.ChoiceErrors {
		warn(err.Error())
	}
	for _, err := range result.SettingsErrors {
		errs = append(errs, err)
	}
	warnOfOpenFrontends(pl)
	return cluster, errors.Join(errs...)
}

// warnOfOpenFrontends warns of Services whose source ranges do not apply to all of their frontends.
func warnOfOpenFrontends(pl *planner.Planner) {
	for _, name := range pl.ServiceNames() {
		if svc := pl.Service(name); svc == nil || len(svc.SourceRanges) == 0 {
			continue
		}
		x, err := pl.Explain(name)
		if err != nil {
			continue
		}
		for _, text := range state.Unrestricted(x) {
			warn("Service " + name.String() + ": " + text)
		}
	}
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

// printBindingNodes prints on which Nodes bindings for some of them apply, if Nodes are known, and returns those that apply on
// none.
func printBindingNodes(w io.Writer, cfg *config.Config, cluster *model.Snapshot) (findings []string) {
	if len(cluster.Nodes) == 0 {
		return nil
	}
	all := cfg.PolicySet().BindingNodes(cluster.Nodes)
	for i := range all {
		if b := &all[i]; len(b.Names) == 0 {
			findings = append(findings, fmt.Sprintf("bindings[%d].nodes: none of the %d Nodes of the manifests", b.Index, b.Known))
			continue
		}
		fmt.Fprintln(w, printable.Escape(all[i].String()))
	}
	return findings
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

// presets describes the policies of a configuration that are presets.
func presets(cfg *config.Config) (out []string) {
	for i := range cfg.Policies {
		if q := &cfg.Policies[i]; q.Preset != "" {
			out = append(out, fmt.Sprintf("policy %s is preset %s: %s", q.Name, q.Preset, config.Chain(q.Plugins)))
		}
	}
	return out
}
