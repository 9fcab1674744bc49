package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
	"github.com/sluice-proxy/sluice/host/whatif/report"
	"github.com/sluice-proxy/sluice/host/whatif/simulation"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// simulateFlags are the inputs of a simulation.
type simulateFlags struct {
	sourceFlags
	config, against string
	timeline        string
	demand          string
	rate            float64
	capacity        string
	lifetime, step  time.Duration
	seed            int64
	at              atFlag
	everyNode       bool
	only            serviceFilter
	failIf          failIf
}

func newSimulateCommand() *cobra.Command {
	var in simulateFlags
	var output, page, namespace string
	cmd := &cobra.Command{
		Use:   "simulate [-n NAMESPACE] [SERVICE]",
		Short: "Compute what policies do to a whole cluster",
		Long: `Reads the cluster state once, computes what the policies of a configuration decide on every node over a timeline, in virtual time, and
prints the load of zones and endpoints that follows: of all Services, of a namespace, or of one Service. With --against, it prints what is
better and what is worse with the configuration, the candidate, than with another one, the baseline. Needs neither root nor a kernel, and changes nothing.`,
		Example: "  sluice simulate --source examples/boutique/manifests --config examples/boutique/sluice.yaml --against none\n" +
			"  sluice simulate --kubeconfig ~/.kube/config --config new.yaml --against old.yaml --timeline zone-lost.scenario --fail-if 'max_overload > 1.5'\n" +
			"  sluice simulate --source cluster.json --config new.yaml --against old.yaml -n shop catalog",
		Args: atMostOneArg("Service"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			in.only, err = newServiceFilter(namespace, args)
			metrics := new(simulation.Summary).Metrics()
			if err := errors.Join(err, checkOutput(output, "text", "json", "yaml"), in.failIf.parse(in.against, metrics, metrics), in.sourceFlags.check()); err != nil {
				return err
			}
			result, err := in.run(cmd.Context())
			if err != nil {
				return err
			}
			if err := writePage(page, func(w io.Writer, o report.Origin) error { return report.Simulation(w, result, o) }); err != nil {
				return err
			}
			if err := writeSimulation(cmd.OutOrStdout(), output, result); err != nil {
				return err
			}
			return in.failIf.err()
		},
	}
	in.sourceFlags.register(cmd)
	f := cmd.Flags()
	f.StringVar(&in.config, "config", "", "configuration file (SluiceConfiguration) to simulate: the candidate (default: no policies)")
	f.StringVar(&in.against, "against", "", "configuration file to compare with: the baseline; none: no policies")
	f.StringVar(&in.timeline, "timeline", "", "scenario file: what happens to the cluster")
	f.StringVar(&in.demand, "demand", "nodes", "new connections: nodes, cpu (in proportion to the allocatable CPU of Nodes), a file with rates, or a recording of sluice run --record")
	flagrange.Float(f, &in.rate, "rate", 1, 0, 1e6, "new connections per second of each Node, the mean, to each Service port, with --demand nodes or cpu")
	f.StringVar(&in.capacity, "capacity", "equal", "capacity of endpoints: equal, request:cpu, annotation:KEY or label:KEY of their Pods")
	flagrange.Duration(f, &in.lifetime, "connection-lifetime", 30*time.Second, time.Second, 24*time.Hour, "mean lifetime of a connection, for policies that count open connections")
	flagrange.Duration(f, &in.step, "step", 0, 0, 24*time.Hour, "time between two samples (default: 1s, or more in a long timeline)")
	flagrange.Int64(f, &in.seed, "seed", 1, math.MinInt64, math.MaxInt64, "seed of what the timeline leaves open, such as which 20 % of the Pods")
	in.at.register(cmd, "that of the timeline's first line `clock`, or one that is the same for the same cluster")
	f.BoolVar(&in.everyNode, "every-node", false, "compute each node by itself, even if others see the same")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	f.StringVar(&page, "html", "", "file to write the report to, as an HTML page without references to others")
	f.StringVarP(&namespace, "namespace", "n", "", "only Services of this namespace (default: all)")
	in.failIf.register(cmd, "'max_overload > 1.3', 'failed_share(shop/catalog) > baseline' or 'cross_zone_share(shop/*) >= 40%'")
	return cmd
}

// run reads the inputs and simulates.
func (in *simulateFlags) run(ctx context.Context) (*simulation.Result, error) {
	input := simulation.Input{Seed: in.seed, EveryNode: in.everyNode, Lifetime: in.lifetime, Step: in.step, Only: in.only.has, Conditions: in.failIf.conditions}
	var err error
	if input.Capacity, err = simulation.ParseCapacity(in.capacity); err != nil {
		return nil, usageError{fmt.Errorf("--capacity %w", err)}
	}
	if input.Demand, err = in.readDemand(); err != nil {
		return nil, err
	}
	if in.timeline != "" {
		text, err := safefile.Read(in.timeline, scenario.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("--timeline: %w", err)
		}
		if input.Timeline, err = scenario.Parse(in.timeline, text); err != nil {
			return nil, err
		}
		if err := simulation.CheckTimeline(input.Timeline); err != nil {
			return nil, err
		}
	}
	if in.at.given() && input.Timeline != nil && input.Timeline.HasClock() {
		return nil, usageError{fmt.Errorf("--at: %s has a clock", in.timeline)}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // a tenth less time for 150 MiB more
	}
	workers, err := in.openWorkers(ctx, &input)
	if err != nil {
		return nil, err
	}
	defer workers.close(ctx)
	if input.Cluster, err = in.readCluster(ctx, workers, input.Capacity); err != nil {
		return nil, err
	}
	if in.at.given() {
		if input.Start, err = in.at.time(simulation.Earliest(input.Cluster)); err != nil {
			return nil, err
		}
	}
	found := false
	for name := range input.Cluster.Services {
		found = found || in.only.has(name)
		if name.String() == in.only.service() || in.failIf.conditions.Name(name.String()) {
			input.Asked = append(input.Asked, name)
		}
	}
	if !found && in.only != (serviceFilter{}) {
		return nil, in.only.errNotFound()
	}
	slices.SortFunc(input.Asked, model.Name.Compare)
	s, err := simulation.New(input)
	if err != nil {
		return nil, err
	}
	return s.Run(workers.plugins, func(n int, f func(int)) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { f(i) })
		}
		wg.Wait()
	}), nil
}

func (in *simulateFlags) readDemand() (*simulation.Demand, error) {
	switch in.demand {
	case "nodes":
		return simulation.NodesDemand(in.rate), nil
	case "cpu":
		return simulation.CPUDemand(in.rate), nil
	}
	file, err := safefile.Open(in.demand)
	if errors.Is(err, os.ErrNotExist) {
		return nil, usageError{fmt.Errorf("--demand %q: must be nodes, cpu, or a file", in.demand)}
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content := bufio.NewReader(file)
	if start, err := content.Peek(len(gzipMagic)); err == nil && string(start) == gzipMagic {
		r, err := recording.NewReader(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", in.demand, err)
		}
		return simulation.RecordedDemand(in.demand, r)
	}
	text, err := io.ReadAll(io.LimitReader(content, simulation.MaxDemandSize+1))
	if err != nil {
		return nil, err
	}
	return simulation.ParseDemand(in.demand, text)
}

const gzipMagic = "\x1f\x8b" // RFC 1952

// simulationWorkers are the plugins of each worker.
type simulationWorkers struct {
	configs []*config.Config
	sets    []*plugins.Set
	plugins [][]simulation.Plugins // by worker, then run
}

// maxSimulationWorkers bounds the instances of plugins.
const maxSimulationWorkers = 16

// openWorkers reads the configurations, and loads their plugins for each worker.
func (in *simulateFlags) openWorkers(ctx context.Context, input *simulation.Input) (w *simulationWorkers, err error) {
	w = &simulationWorkers{}
	files := []string{in.config}
	if in.against != "" {
		files = append(files, in.against)
	}
	for i, file := range files {
		cfg := config.Default()
		if i == 1 && file == "none" {
			file = ""
		}
		if file != "" {
			if cfg, err = config.Load(file); err != nil {
				return nil, err
			}
		}
		if in.against != "none" || i == 0 { // the configuration without policies is without those of objects too
			if cfg, err = in.withObjects(ctx, cfg); err != nil {
				return nil, err
			}
		}
		w.configs = append(w.configs, cfg)
		input.Runs = append(input.Runs, simulation.Config{
			File: file, Settings: agent.PlanSettings(cfg, nil), Period: cfg.Signals.Period,
		})
	}
	defer func() {
		if err != nil {
			w.close(ctx)
		}
	}()
	for worker := range min(runtime.GOMAXPROCS(0), maxSimulationWorkers) {
		var all []simulation.Plugins
		for i, cfg := range w.configs {
			set, err := plugins.Open(ctx, cfg, plugins.Options{Compiler: compileCommand, Process: processCommand, Precompiled: precompiledPlugins(), Offline: true, Log: warningsLogger()})
			if err != nil {
				return nil, err
			}
			w.sets = append(w.sets, set)
			if _, err := set.Load(ctx, cfg, nil); err != nil && worker == 0 {
				printError(err)
			}
			all = append(all, set.Get)
			if worker == 0 {
				input.Runs[i].Plugins = pluginInfos(set)
			}
		}
		w.plugins = append(w.plugins, all)
	}
	return w, nil
}

func (w *simulationWorkers) close(ctx context.Context) {
	for _, set := range w.sets {
		set.Close(ctx)
	}
}

func pluginInfos(set *plugins.Set) (out []simulation.PluginInfo) {
	for _, st := range set.Status() {
		if _, shadow := policy.CutShadow(st.Name); shadow {
			continue
		}
		info := simulation.PluginInfo{Name: st.Name, Digest: st.Digest}
		if p, err := set.Get(st.Name); err == nil {
			info.Revision = p.Revision()
		}
		out = append(out, info)
	}
	return out
}

// readCluster reads the cluster state, with what the policies of all runs need.
func (in *simulateFlags) readCluster(ctx context.Context, w *simulationWorkers, capacity simulation.Capacity) (*model.Snapshot, error) {
	var keys []string
	if capacity != "" {
		keys = append(keys, string(capacity))
	}
	var needs kube.Needs
	for i, cfg := range w.configs {
		n := agent.AllNeeds(cfg, w.plugins[0][i], keys)
		for _, pods := range [...]struct {
			kind string
			keys []string
		}{{abi.KeyPodLabel, n.Pods.Labels}, {abi.KeyPodAnnotation, n.Pods.Annotations}, {abi.KeyServiceAnnotation, n.Annotations},
			{abi.KeyNodeLabel, n.NodeLabels}, {abi.KeyNamespaceLabel, n.NamespaceLabels}, {abi.KeyLoad, n.Load}} {
			for _, key := range pods.keys {
				keys = append(keys, pods.kind+key)
			}
		}
		if n.Pods.Full {
			keys = append(keys, abi.KeyPodCPU)
		}
		needs = n
	}
	all := *w.configs[0]
	all.HostnameOverride = "" // all Nodes
	cluster, problems, err := in.read(ctx, &all, func(*model.Node) func(*model.Service) kube.Needs {
		return func(*model.Service) kube.Needs { return needs }
	})
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		if p.Warning {
			warn(p.Error())
		} else {
			printError(p)
		}
	}
	if in.source != "" && len(cluster.Pods) == 0 && needs.Pods.Any() {
		warn(in.source + ": no Pod: the labels, annotations and CPU requests that plugins or --capacity need are absent")
	}
	return cluster, nil
}

// writeSimulation prints a result.
func writeSimulation(out io.Writer, format string, r *simulation.Result) error {
	if format != "text" {
		return printer.Object(out, format, r)
	}
	printSimulation(out, r)
	return nil
}

// writePage writes the report of a result to a file; "": it is not wanted.
func writePage(file string, page func(w io.Writer, o report.Origin) error) error {
	if file == "" {
		return nil
	}
	command := "sluice"
	for _, arg := range os.Args[1:] {
		if strings.ContainsAny(arg, " \t\n'\"\\$`*?[](){}<>|&;#~!") || arg == "" {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		command += " " + arg
	}
	var out bytes.Buffer
	if err := page(&out, report.Origin{Version: buildVersion(), Command: command}); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return os.WriteFile(file, out.Bytes(), 0o644) //nolint:gosec // a report is to be shown
}
