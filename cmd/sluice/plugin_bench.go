package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/cmd/internal/flagrange"
	"github.com/sluice-proxy/sluice/cmd/internal/printer"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/util/safefile"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

// maxBenchRounds bounds the rounds of plugin bench.
const maxBenchRounds = 10_000

func newPluginBenchCommand() *cobra.Command {
	var b pluginBench
	var settings, output string
	cmd := &cobra.Command{
		Use:   "bench MODULE",
		Short: "Measure what a plugin costs, and compare two modules",
		Long: `Calls a WebAssembly module in the sandbox with requests of 1, 10, 100 and 1000 endpoints, or with those of --request, which
'sluice explain --dump-request' writes, and prints the fuel, time, host allocations and memory of a call. A call is all that a node does for it: encode the
request, decide, decode the response.

With --against, both modules are called alternately, in blocks of some milliseconds, so that what else the machine does affects both. The ratio is that of
the medians of their blocks, with its 95 % confidence interval.`,
		Example: `  sluice plugin bench bin/plugins/locality.wasm
  sluice plugin bench new.wasm --against old.wasm --request shop.cart.http.json`,
		Args: oneArg("WebAssembly module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if settings != "" && !json.Valid([]byte(settings)) {
				return usageError{fmt.Errorf("--settings is not JSON: %.100q", settings)}
			}
			if err := checkOutput(output, "text", "json", "yaml"); err != nil {
				return err
			}
			b.settings = []byte(settings)
			b.modules = args
			if b.against != "" {
				b.modules = append(b.modules, b.against)
			}
			report, err := b.run(cmd.Context())
			if err != nil {
				return err
			}
			if output != "text" {
				return printer.Object(cmd.OutOrStdout(), output, report)
			}
			return report.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&b.against, "against", "", "another WebAssembly module, to compare with")
	cmd.Flags().StringVar(&settings, "settings", "", "settings of both, as JSON; by default those of the request")
	cmd.Flags().StringArrayVar(&b.requests, "request", nil, "request, a file that explain --dump-request has written; may be repeated")
	flagrange.Int(cmd.Flags(), &b.rounds, "rounds", "", 100, 2, maxBenchRounds, "rounds of two blocks of calls of each module")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json or yaml")
	return cmd
}

// pluginBench is an execution of plugin bench.
type pluginBench struct {
	against  string
	modules  []string
	settings []byte
	requests []string
	rounds   int
}

// benchCase is what is measured.
type benchCase struct {
	name     string
	request  *abi.Request
	settings string
	keys     []string // nil: those of the request
}

func (b *pluginBench) run(ctx context.Context) (report *benchReport, err error) {
	cases, err := b.cases()
	if err != nil {
		return nil, err
	}
	host, err := wasm.New(ctx, wasm.Options{CacheDir: plugins.UserCacheDir(), Compiler: compileCommand, Log: slog.New(slog.DiscardHandler), Now: time.Now, Missing: missingEverywhere()})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close(ctx)) }()
	report = &benchReport{Rounds: b.rounds}
	var loaded []*wasm.Plugin
	for _, file := range b.modules {
		module, err := readModule(ctx, file)
		if err != nil {
			return nil, fmt.Errorf("plugin bench: %w", err)
		}
		p, err := host.Open(ctx, file, module, wasm.LoadOptions{})
		if err != nil {
			return nil, config.PrefixErrors("plugin bench: "+file, err)
		}
		loaded = append(loaded, p)
		report.Modules = append(report.Modules, benchModule{File: file, Revision: p.Revision()})
	}
	for _, c := range cases {
		var measured []*benchTarget
		for i, p := range loaded {
			if _, err := p.Check(ctx, c.settings); err != nil {
				return nil, config.PrefixErrors("plugin bench: "+b.modules[i], err)
			}
			measured = append(measured, newBenchTarget(p, c))
		}
		result, err := measure(ctx, c, measured, b.rounds)
		if err != nil {
			return nil, fmt.Errorf("plugin bench: %s: %w", c.name, err)
		}
		report.Requests = append(report.Requests, *result)
	}
	return report, nil
}

// cases returns the requests of the flags, or generated ones.
func (b *pluginBench) cases() (all []benchCase, err error) {
	for _, n := range []int{1, 10, 100, 1000} {
		if len(b.requests) == 0 {
			all = append(all, benchCase{name: "generated", request: wasm.SampleRequest(n), settings: string(b.settings)})
		}
	}
	for _, file := range b.requests {
		text, err := safefile.Read(file, fixture.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("plugin bench: %w", err)
		}
		f, err := fixture.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("plugin bench: %s: %w", file, err)
		}
		c := benchCase{name: file, request: &f.Request, settings: string(f.Settings), keys: f.Request.Keys}
		if len(b.settings) > 0 {
			c.settings = string(b.settings)
		}
		all = append(all, c)
	}
	return all, nil
}

// benchReport is the result of plugin bench; its JSON form is stable.
type benchReport struct {
	Rounds   int           `json:"rounds"`
	Modules  []benchModule `json:"modules"`
	Requests []benchResult `json:"requests"`
}

type benchModule struct {
	File     string `json:"file"`
	Revision string `json:"revision"`
}
