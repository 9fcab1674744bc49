package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/host/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/agent/plugins"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/printable"
	"github.com/sluice-proxy/sluice/host/safefile"
	"github.com/sluice-proxy/sluice/host/wasm"
	"github.com/sluice-proxy/sluice/host/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func newPluginCommand() *cobra.Command {
	return newGroup("plugin", "Work with policy plugins", newPluginCheckCommand())
}

// checkTimeout is generous: the limits of the loader stop every module earlier.
const checkTimeout = 2 * time.Minute

func newPluginCheckCommand() *cobra.Command {
	var settings string
	var answers, verbose bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Load a plugin, test it, and measure what it costs",
		Long: `Loads a WebAssembly module as 'sluice run' does: validates, meters and compiles it, passes its settings, and calls it with
sample requests: Services of several sizes, with one and many zones, IPv4 and IPv6, ready and terminating endpoints.
Then it looks for what can never work, or not for long: answers without weight, weights that no mode of the data plane represents,
and a state that grows. Prints what it costs with warnings, or on standard error why it is refused and what to do about it.
No module can crash or block the check. The exit code is 1 if 'sluice run' would refuse the module, or it can never work.`,
		Example: `  sluice plugin check bin/plugins/zone-spill.wasm
  sluice plugin check bin/plugins/staged-drain.wasm --settings '{"stages": [{"weight": 50, "seconds": 10}]}' --answers`,
		Args: oneArg("WebAssembly module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if settings != "" && !json.Valid([]byte(settings)) {
				return usageError{fmt.Errorf("--settings is not JSON: %.100q", settings)}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			log := slog.New(slog.DiscardHandler)
			if verbose {
				log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			check := pluginCheck{file: args[0], settings: []byte(settings), log: log, out: cmd.OutOrStdout(), answers: answers}
			if err := check.run(ctx); err != nil {
				return config.PrefixErrors("plugin check: "+args[0], err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&settings, "settings", "", "the policy's settings for this plugin, as JSON")
	cmd.Flags().BoolVar(&answers, "answers", false, "print the response to each sample request")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print what the plugin logs, on standard error")
	return cmd
}

type pluginCheck struct {
	file     string
	settings []byte
	log      *slog.Logger
	out      io.Writer
	answers  bool
}

// run loads the module twice, the second time with compiled code from the cache, and measures calls.
func (c *pluginCheck) run(ctx context.Context) (err error) {
	module, err := safefile.Read(c.file, plugins.MaxModule)
	if err != nil {
		return err
	}
	cache, err := os.MkdirTemp("", "sluice-plugin-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	missing := missingEverywhere()
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Compiler: compileCommand, Log: c.log, Now: time.Now, Missing: missing})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	first, err := host.Load(ctx, c.file, module, c.settings)
	if err != nil {
		return err
	}
	if err := first.Close(); err != nil { // or the second would share its code
		return err
	}
	second, err := host.Load(ctx, c.file, module, c.settings)
	if err != nil {
		return fmt.Errorf("load it again: %w", err)
	}
	costs, err := c.callCosts(second)
	if err != nil {
		return err
	}
	warnings, err := c.faults(second)
	if err != nil {
		return err
	}
	c.print(first.Report(), second.Report(), costs, second.Stats())
	for _, w := range warnings {
		fmt.Fprintf(c.out, "\nwarning: %s\n", printable.Escape(w))
	}
	if c.answers {
		return c.printAnswers(second)
	}
	return nil
}

// faults returns why a plugin that loads can never work, or what it probably does not intend.
func (c *pluginCheck) faults(p *wasm.Plugin) (warnings []string, err error) {
	keys, settings := p.Report().Keys, string(c.settings)
	all, err := askSamples(p, settings, keys)
	if err != nil {
		return nil, err
	}
	warnings, weightErr := checkWeights(all)
	grows, stateErr := checkState(p, settings, keys)
	if warnings = append(warnings, checkModes(all, dataplane.All())...); grows != "" {
		warnings = append(warnings, grows)
	}
	return warnings, errors.Join(weightErr, stateErr)
}

// callCost is the cost of one call with a number of endpoints.
type callCost struct {
	endpoints int
	fuel      uint64
	median    time.Duration
}

func (c *pluginCheck) callCosts(p *wasm.Plugin) ([]callCost, error) {
	var costs []callCost
	for _, n := range []int{1, 10, 100, 1000} {
		req, resp := wasm.SampleRequest(n, p.Report().Keys...), abi.Response{}
		req.Settings.Text = string(c.settings)
		var times []time.Duration
		for begin := time.Now(); len(times) < 200 && (len(times) < 5 || time.Since(begin) < 200*time.Millisecond); {
			resp.Reset(n)
			start := time.Now()
			if err := p.Decide(req, &resp); err != nil {
				return nil, fmt.Errorf("%d endpoints: %w", n, err)
			}
			times = append(times, time.Since(start))
		}
		slices.Sort(times)
		costs = append(costs, callCost{n, p.Stats().LastFuel, times[len(times)/2]})
	}
	return costs, nil
}

func (c *pluginCheck) print(r, cached wasm.Report, costs []callCost, stats wasm.Stats) {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, printable.Escape(fmt.Sprintf(format, args...)))
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
	m := r.Module
	line("plugin", "%s", c.file)
	line("revision", "%s (module and ABI)", r.Revision[:16])
	line("ABI version", "%d.%d", r.ABI>>16, r.ABI&0xffff)
	line("needs", "%s", needsText(r.Needs, r.Keys))
	for _, text := range refusedBy(dataplane.All(), r.Needs, r.Keys) {
		line("refused by", "%s", text)
	}
	line("imports", "%s", importsText(m.Imports))
	line("size", "%d bytes, metered %d", m.Size, m.Metered)
	line("functions", "%d, the largest %d bytes", m.Functions, m.LargestBody)
	fromCache := "not from the cache"
	if cached.FromCache {
		fromCache = "from the cache " + ms(cached.Compile)
	}
	line("compile", "%s and %s for metering; %s", ms(r.Compile), ms(r.Meter), fromCache)
	line("instantiate", "%s, fuel %d", ms(cached.Instantiate), cached.InitFuel)
	line("memory", "%d KiB initially, %d KiB after calls", r.MemoryBytes>>10, stats.MemoryBytes>>10)
	line("host memory", "%d KiB, with compiled code and tables", stats.HostBytes>>10)
	t := cached.SelfTest
	line("deterministic", "yes: %d sample requests in %d orders have equal answers (%d calls of %d instances, new and used; %s, fuel %d)",
		t.Samples, t.Orders, t.Calls, t.Instances, ms(t.Duration), t.Fuel)
	w.Flush()
	fmt.Fprintln(c.out)
	w = tabwriter.NewWriter(c.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "endpoints\tfuel\tof the budget\tmedian time\t\n")
	limits := wasm.DefaultLimits()
	for _, k := range costs {
		budget := limits.DecideFuel + limits.EndpointFuel*int64(k.endpoints)
		fmt.Fprintf(w, "%d\t%d\t%.2f %%\t%.2f µs\t\n", k.endpoints, k.fuel, 100*float64(k.fuel)/float64(budget), float64(k.median.Nanoseconds())/1000)
	}
	w.Flush()
}

func (c *pluginCheck) printAnswers(p *wasm.Plugin) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nsample request\trequeue after\tweights\treasons\n")
	for _, s := range wasm.Samples(p.Report().Keys...) {
		s.Request.Settings.Text = string(c.settings)
		var resp abi.Response
		resp.Reset(len(s.Request.Endpoints))
		if err := p.Decide(s.Request, &resp); err != nil {
			return fmt.Errorf("sample request %q: %w", s.Name, err)
		}
		requeue := "-"
		if resp.RequeueAfter > 0 {
			requeue = resp.RequeueAfter.String()
		}
		var weights, reasons []string
		for i, a := range resp.Results {
			if i < 12 {
				weights = append(weights, fmt.Sprint(a.Weight))
			} else if i == 12 {
				weights = append(weights, "…")
			}
			if a.Reason != "" && !slices.Contains(reasons, a.Reason) && len(reasons) < 4 {
				reasons = append(reasons, a.Reason)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, requeue, strings.Join(weights, " "), printable.Escape(strings.Join(reasons, "; ")))
	}
	return w.Flush()
}

// missingEverywhere returns the inputs that no mode gives.
func missingEverywhere() map[string]string {
	modes := dataplane.All()
	missing := modes[0].MissingInputs()
	for i := range modes[1:] {
		other := modes[1+i].MissingInputs()
		maps.DeleteFunc(missing, func(name, _ string) bool { return other[name] == "" })
	}
	return missing
}

// refusedBy returns the modes that cannot give what a plugin asks for, with the input and the reason.
func refusedBy(modes dataplane.Modes, needs uint32, keys []string) (out []string) {
	for i := range modes {
		missing := modes[i].MissingInputs()
		for _, in := range wasm.Inputs() {
			if why := missing[in.Name]; why != "" && in.Asked(needs, keys) != "" {
				out = append(out, fmt.Sprintf("mode %s: %s: %s", modes[i].Name, in.Text, why))
			}
		}
	}
	return out
}

// needsText names the optional inputs of a plugin, with the keys that it declares.
func needsText(needs uint32, keys []string) string {
	var all []string
	for _, in := range wasm.Inputs() {
		if text := in.Asked(needs, keys); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, "; ")
}

func importsText(imports []meter.Import) string {
	count := map[string]int{}
	var modules []string
	for _, im := range imports {
		if count[im.Module] == 0 {
			modules = append(modules, im.Module)
		}
		count[im.Module]++
	}
	if len(modules) == 0 {
		return "none"
	}
	for i, m := range modules {
		modules[i] = fmt.Sprintf("%d of %s", count[m], m)
	}
	return strings.Join(modules, ", ")
}
