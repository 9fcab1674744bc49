package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func newPluginCommand() *cobra.Command {
	return newGroup("plugin", "Work with policy plugins", newPluginNewCommand(), newPluginBuildCommand(), newPluginEmbedCommand(), newPluginCheckCommand(), newPluginTestCommand(),
		newPluginBenchCommand(), newPluginInspectCommand(), newPluginPushCommand(), newPluginPullCommand(), newPluginDigestCommand(), newPluginTagsCommand(), newPluginUntagCommand())
}

// checkTimeout is generous: the limits of the loader stop every module earlier.
const checkTimeout = 2 * time.Minute

func newPluginCheckCommand() *cobra.Command {
	var settings, output string
	var answers, verbose, conformance bool
	cmd := &cobra.Command{
		Use:   "check FILE|IMAGE",
		Short: "Load a plugin, test it, and measure what it costs",
		Long: `Loads a WebAssembly module as 'sluice run' does: validates, meters and compiles it, passes its settings, and calls it with
sample requests: Services of several sizes, with one and many zones, IPv4 and IPv6, ready and terminating endpoints.
Then it looks for what can never work, or not for long: answers without weight, weights that no mode of the data plane represents,
and a state that grows. Prints what it costs with warnings, or on standard error why it is refused and what to do about it.
No module can crash or block the check. The exit code is 1 if 'sluice run' would refuse the module, or it can never work.

With --conformance, proves the module against the requirements of the plugin ABI instead, and prints a verdict for each: for authors of SDKs, and of
plugins without one. The exit code is 1 if a MUST fails.`,
		Example: `  sluice plugin check bin/plugins/locality.wasm
  sluice plugin check bin/plugins/lifecycle.wasm --settings '{"drain": {"stages": [{"percent": 50, "duration": "10s"}]}}' --answers
  sluice plugin check near.wasm --conformance`,
		Args: oneArg("WebAssembly module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			check, err := newPluginCheck(cmd, args[0], settings)
			if err != nil {
				return err
			}
			if verbose {
				check.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelDebug}))
			}
			if conformance {
				if answers {
					return usageError{errors.New("--answers and --conformance exclude each other")}
				}
				return check.conformance(cmd.Context(), cmd.OutOrStdout(), output)
			}
			result, err := check.run(cmd.Context(), answers)
			if err != nil {
				return config.PrefixErrors("plugin check: "+args[0], err)
			}
			if output != "text" {
				return printer.Object(cmd.OutOrStdout(), output, result)
			}
			return result.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&settings, "settings", "", "the policy's settings for this plugin, as JSON")
	cmd.Flags().BoolVar(&answers, "answers", false, "print the response to each sample request")
	cmd.Flags().BoolVar(&conformance, "conformance", false, "print a verdict for each requirement of the plugin ABI")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print what the plugin logs, on standard error")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// pluginCheck loads a module.
type pluginCheck struct {
	file     string
	module   []byte
	settings []byte
	log      *slog.Logger
}

// newPluginCheck reads a file or image, and returns a check of it whose plugin logs to nowhere.
func newPluginCheck(cmd *cobra.Command, file, settings string) (*pluginCheck, error) {
	if settings != "" && !json.Valid([]byte(settings)) {
		return nil, usageError{fmt.Errorf("--settings is not JSON: %.100q", settings)}
	}
	module, err := readModule(cmd.Context(), file)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", cmd.Name(), err) // err names the file
	}
	return &pluginCheck{file: file, module: module, settings: []byte(settings), log: slog.New(slog.DiscardHandler)}, nil
}

// withEmptyCache calls f with a host that has compiled nothing yet, so that the time of compiling can be measured.
func (c *pluginCheck) withEmptyCache(ctx context.Context, f func(context.Context, *wasm.Host) error) (err error) {
	cache, err := os.MkdirTemp("", "sluice-plugin-check-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }()
	return c.withHost(ctx, cache, f)
}

// withHost calls f with a host.
func (c *pluginCheck) withHost(ctx context.Context, cache string, f func(context.Context, *wasm.Host) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	host, err := wasm.New(ctx, wasm.Options{CacheDir: cache, Compiler: compileCommand, Process: processCommand, Log: c.log, Now: time.Now, Missing: missingEverywhere()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	return f(ctx, host)
}

// run loads the module twice, the second time with compiled code from the cache, and measures calls.
func (c *pluginCheck) run(ctx context.Context, answers bool) (result *checkResult, err error) {
	err = c.withEmptyCache(ctx, func(ctx context.Context, host *wasm.Host) error {
		first, err := host.Load(ctx, c.file, c.module, c.settings)
		if err != nil {
			return err
		}
		if err := first.Close(); err != nil { // or the second would share its code
			return err
		}
		second, err := host.Load(ctx, c.file, c.module, c.settings)
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
		report := first.Report()
		result = &checkResult{
			moduleInfo: newModuleInfo(c.file, c.module, &report.Module), pluginInfo: newPluginInfo(&report),
			Calls: costs, Warnings: append([]string{}, warnings...),
		}
		result.add(report, second.Report(), second.Stats())
		if answers {
			result.Answers, err = c.answers(second)
		}
		return err
	})
	return result, err
}

// faults returns why a plugin that loads can never work, or what it probably does not intend.
func (c *pluginCheck) faults(p *wasm.Plugin) (warnings []string, err error) {
	keys, settings := p.Report().Keys, string(c.settings)
	all, err := askSamples(p, settings, keys)
	if err != nil {
		return nil, err
	}
	warnings, weightErr := checkWeights(all, p.Role())
	grows, stateErr := checkState(p, settings, keys)
	if warnings = append(warnings, checkModes(all, dataplane.All())...); grows != "" {
		warnings = append(warnings, grows)
	}
	return warnings, errors.Join(weightErr, stateErr)
}

func (c *pluginCheck) callCosts(p *wasm.Plugin) ([]callCost, error) {
	var costs []callCost
	limits := wasm.DefaultLimits()
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
		costs = append(costs, callCost{n, p.Stats().LastFuel, limits.DecideFuel + limits.EndpointFuel*int64(n), microseconds(times[len(times)/2])})
	}
	return costs, nil
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
