package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// inputFlags are the inputs of a plan: cluster state, node and configuration.
type inputFlags struct {
	sourceFlags
	node   string
	config string
	mode   string
	at     time.Time // of the plan, for plugins; zero: now
	// serviceFilter limits the problems that are printed to one Service, namespace/name; "": all.
	serviceFilter string
	planned       planned      // by planOnce
	local         []netip.Addr // addresses of the node in addition to those of its Node object
}

// planned is what planOnce has found beside the plan.
type planned struct {
	node    *api.Node // what of the configuration is in force
	failing []string  // plugins and Services, after serviceFilter
	shadows []string  // those that fail
	presets []string  // policies that are presets
}

func (in *inputFlags) register(cmd *cobra.Command) {
	in.sourceFlags.register(cmd)
	cmd.Flags().StringVar(&in.node, "node", "", "name of this node (default: hostnameOverride of the configuration, else the host's name)")
	cmd.Flags().StringVar(&in.config, "config", "", "configuration file (SluiceConfiguration)")
	cmd.Flags().StringVar(&in.mode, "mode", "", "proxy mode: nftables or ipvs (default: mode of the configuration)")
}

// load reads the configuration. Flags take precedence over it.
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
			return nil, fmt.Errorf("name of this node (set --node): %w", err)
		}
		cfg.HostnameOverride = strings.ToLower(strings.TrimSpace(host))
	}
	return cfg, nil
}

// planOnce plans the current cluster state. Problems of objects are printed to standard error.
func (in *inputFlags) planOnce(ctx context.Context) (_ *planner.Planner, closePlugins func(), err error) {
	cfg, err := in.load()
	if err != nil {
		return nil, nil, err
	}
	if cfg, err = in.withObjects(ctx, cfg); err != nil {
		return nil, nil, err
	}
	set, err := plugins.Open(ctx, cfg, plugins.Options{Compiler: compileCommand, Process: processCommand, Precompiled: precompiledPlugins(), Offline: true, Log: warningsLogger()})
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			set.Close(ctx)
		}
	}()
	_, loadErr := set.Load(ctx, cfg, nil)
	needs := agent.SourceNeeds(cfg, set.Get)
	cluster, problems, err := in.read(ctx, cfg, needs)
	if err != nil {
		return nil, nil, err
	}
	if in.source != "" && lacksPods(cluster, needs(cluster.Nodes[cfg.HostnameOverride])) {
		warn("source directory " + in.source + ": no Pod: the labels, annotations and CPU requests that plugins declare are absent")
	}
	if text := in.missingNode(cfg.HostnameOverride, cluster); text != "" && in.node != "" {
		return nil, nil, usageError{errors.New(text)}
	} else if text != "" {
		warn(text)
	}
	for _, p := range problems {
		if p.Warning {
			warn(p.Error())
		} else {
			printError(p)
		}
	}
	if loadErr != nil {
		printError(loadErr)
	}
	pl := agent.NewPlanner(cfg, in.local, set)
	pl.SetCaps(dataplane.All().Get(cfg.Mode).Caps())
	pl.Replace(cluster)
	at := in.at
	if at.IsZero() {
		at = time.Now()
	}
	result := pl.PlanNow(at)
	if loadErr != nil { // printed, and not once more for each Service
		said := strings.Split(loadErr.Error(), "\n")
		result.Errors = slices.DeleteFunc(result.Errors, func(err error) bool {
			return slices.ContainsFunc(said, func(line string) bool { return line != "" && strings.Contains(err.Error(), line) })
		})
	}
	if in.serviceFilter != "" {
		result.Errors = slices.DeleteFunc(result.Errors, func(err error) bool { return !strings.Contains(err.Error(), in.serviceFilter) })
		result.Warnings = slices.DeleteFunc(result.Warnings, func(w string) bool { return !strings.Contains(w, in.serviceFilter) })
	}
	in.planned = planned{node: agent.NodeState(cfg, set), failing: failing(loadErr, &result, in.serviceFilter), presets: presets(cfg)}
	for _, err := range result.ShadowErrors {
		in.planned.shadows = append(in.planned.shadows, err.Error())
	}
	printServiceErrors(&result, in.serviceFilter)
	const maxErrors = 5
	for i, err := range result.Errors {
		if i == maxErrors {
			fmt.Fprintf(stderr, "sluice: the policies of %d more Services failed\n", len(result.Errors)-i)
			break
		}
		printError(err)
	}
	for _, w := range result.Warnings {
		warn(w)
	}
	return pl, func() { set.Close(ctx) }, nil
}

// lacksPods reports whether there are no Pods although a policy needs some.
func lacksPods(cluster *model.Snapshot, needs func(*model.Service) kube.Needs) bool {
	if len(cluster.Pods) > 0 {
		return false
	}
	for _, svc := range cluster.Services {
		if n := needs(svc); n.Pods.Any() {
			return true
		}
	}
	return false
}

// failing returns what is not in force as configured: plugins, and policies and annotations of Services; filter is the name of
// one Service, or "".
func failing(loadErr error, result *planner.Result, filter string) (out []string) {
	if loadErr != nil {
		out = append(out, strings.Split(loadErr.Error(), "\n")...)
	}
	for _, err := range slices.Concat(result.Errors, annotationErrors(result, filter)) {
		out = append(out, err.Error())
	}
	return out
}

// maxServiceErrors bounds how many Services whose annotations are not in force are printed.
const maxServiceErrors = 20

// printServiceErrors prints why the annotations of Services would not be in force; filter is the name of one Service, or "".
func printServiceErrors(result *planner.Result, filter string) {
	errs := annotationErrors(result, filter)
	for i, err := range errs {
		if i == maxServiceErrors {
			fmt.Fprintf(stderr, "sluice: %d more annotations of Services are not in force\n", len(errs)-i)
			return
		}
		printError(err)
	}
}

// annotationErrors returns why annotations of Services are not in force.
func annotationErrors(result *planner.Result, filter string) (errs []error) {
	for _, err := range result.ChoiceErrors {
		if filter == "" || err.Service.String() == filter {
			errs = append(errs, err)
		}
	}
	for _, err := range result.SettingsErrors {
		if filter == "" || err.Service.String() == filter {
			errs = append(errs, err)
		}
	}
	return errs
}

// printError prints an error that does not end the command.
func printError(err error) {
	for _, line := range printable.Lines(err) {
		fmt.Fprintf(stderr, "sluice: %s\n", line)
	}
}

func warn(text string) { fmt.Fprintf(stderr, "sluice: warning: %s\n", printable.Escape(text)) }

// maxNodes bounds how many Nodes an error names.
const maxNodes = 10

// missingNode returns a text if the cluster does not have the Node to plan for: with the Nodes that a directory has. Manifests
// without any Node are good for every one.
func (in *inputFlags) missingNode(node string, cluster *model.Snapshot) string {
	switch names := slices.Sorted(maps.Keys(cluster.Nodes)); {
	case cluster.Nodes[node] != nil, in.source != "" && len(names) == 0:
		return ""
	case in.source == "":
		return fmt.Sprintf("Node %s: not found in the cluster; set --node to plan for another Node", node)
	default:
		list := strings.Join(names[:min(len(names), maxNodes)], ", ")
		if more := len(names) - maxNodes; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		return fmt.Sprintf("Node %s: not found in %s%s; set --node to one of its Nodes: %s", node, in.source, spelling.DidYouMean(node, names), list)
	}
}
